"""R17: whatever stands in a line of JSONL, reading it gives a valid sample or an error that names the row; nothing crashes or swells."""

from __future__ import annotations

import json
import random
import resource

import pytest

from tether.data.load import load_rows
from tether.errors import DataError
from tether.records import read_comparisons, read_demonstrations, read_feedback, read_prompts
from tether.types import Comparison, Demonstration, Feedback, Prompt

READERS = {
    Demonstration: read_demonstrations,
    Comparison: read_comparisons,
    Feedback: read_feedback,
    Prompt: read_prompts,
}
FIELDS = ["prompt", "completion", "chosen", "rejected", "label", "margin", "messages", "prompt_id", "answer", "\u0000", ""]
RAW = [
    b"", b"\xef\xbb\xbf", b"\r", b"null", b"[1]", b"3", b'"text"', b"{", b'{"prompt": "a"', b'{"prompt": "a"}}', b"\xff\xfe", b"\x00",
    b'{"prompt": NaN}', b'{"prompt": "a", "margin": Infinity}', b'{"prompt": "a", "prompt": "b", "completion": "c"}',
    b'{"prompt": "\\ud800", "completion": "x"}', b'{"prompt": "a\\u0000b", "completion": "x"}', b"[" * 50_000, b'{"a":' * 20_000,
    b'{"prompt": "a", "label": 1e999}', b'{"prompt": "a", "margin": ' + b"9" * 5000 + b"}", b"NaN", b"'single'", b'{"prompt": "a",}',
    b'{"prompt": "a", "chosen": "b", "rejected": "c"}\r', b'{"prompt": "a", "completion": "b", "label": true}',
]  # fmt: skip


def text(rng: random.Random) -> str:
    letters = rng.choice(["abc ", "äé€𝄞", "\u0000\u0001\u200b\u202e", "{}[]\",:\\n"])
    return "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 5, 200])))


def value(rng: random.Random, depth: int = 0):
    kind = rng.randrange(12)
    if kind < 4:
        return text(rng)
    if kind < 8:
        return rng.choice([None, True, False, 0, -1, 3.5, 10**30, 1e308, [], {}])
    if kind < 10 and depth < 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    role = rng.choice(["user", "assistant", "system", "", None, 3])
    turn = {"role": role, "content": value(rng, depth + 1) if depth < 4 else "x"}
    return rng.choice([[turn], [turn, {"role": "assistant", "content": "b"}], turn])


def line(rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return rng.choice(RAW)
    row = {rng.choice(FIELDS): value(rng) for _ in range(rng.randrange(6))}
    data = json.dumps(row, ensure_ascii=rng.random() < 0.5, allow_nan=True).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(1).replace(b"\n", b"x") + data[at + 1 :]
    return data


def test_r17_ten_thousand_random_rows(tmp_path):
    count = 10_000
    rng, path = random.Random(17), tmp_path / "rows.jsonl"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good = 0
    for at in range(0, count, 50):
        path.write_bytes(b"\n".join(line(rng) for _ in range(50)) + b"\n")
        for kind, read in READERS.items():
            try:
                rows = load_rows(str(path)).rows
            except DataError as error:
                assert str(path) in str(error)  # noqa: PT017
                continue
            for number, row in enumerate(rows, start=1):
                try:
                    if isinstance(row, DataError):
                        raise row
                    found = read([row], f"{path} row {number}")
                except DataError as error:
                    assert str(error)  # noqa: PT017
                else:
                    assert found
                    assert all(isinstance(record, kind) for record in found)
                    good += 1
        with pytest.raises(DataError, match=r"row"):  # all of them together: the rows are named by number
            read_demonstrations(load_rows(str(path)).rows, str(path))
        assert at < count
    assert good > count / 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= 200 * 1024


def test_r17_a_string_of_ten_megabytes(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 10_000_000, "completion": "y"}) + "\n")
    (found,) = read_demonstrations(load_rows(str(path)).rows, str(path))
    assert isinstance(found, Demonstration)
