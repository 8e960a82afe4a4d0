"""Rows of every format in, records out; every bad row named, never a KeyError."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys

import pytest

from tether import records
from tether.errors import DataError
from tether.records import (
    comparison_from_row,
    demonstration_from_row,
    file_sha256,
    prompt_from_row,
    read_comparisons,
    read_demonstrations,
    read_jsonl,
    read_lines,
    read_prompts,
    write_jsonl,
)
from tether.types import Message


def u(text):
    return {"role": "user", "content": text}


def a(text):
    return {"role": "assistant", "content": text}


USER, ANSWER = Message("user", "q"), Message("assistant", "x")


def test_no_torch_is_imported():
    code = "import sys, tether.records; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- formats


@pytest.mark.parametrize(
    ("row", "prompt", "completion"),
    [
        ({"prompt": "q", "completion": "x"}, "q", "x"),
        ({"prompt": [u("q")], "completion": [a("x")]}, (USER,), (ANSWER,)),
        ({"prompt": [u("q")], "completion": "x"}, (USER,), "x"),
        ({"prompt": [u("q")], "completion": [u("q"), a("x")]}, (USER,), (ANSWER,)),
        ({"messages": [u("q"), a("x")]}, (USER,), (ANSWER,)),
        ({"messages": [u("q"), a("x"), u("q"), a("x")]}, (USER,), (ANSWER, USER, ANSWER)),
        ({"prompt": "ignored", "completion": None, "messages": [u("q"), a("x")]}, (USER,), (ANSWER,)),
        ({"messages": [u([{"type": "text", "text": "q"}]), a("x") | {"name": "bot"}]}, (USER,), (ANSWER,)),
    ],
)
def test_demonstrations(row, prompt, completion):
    found = demonstration_from_row(row)
    assert (found.prompt, found.completion) == (prompt, completion)


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        ({"prompt": "q", "chosen": "x", "rejected": "y"}, "q", "x", "y"),
        ({"prompt": [u("q")], "chosen": [a("x")], "rejected": [a("y")]}, (USER,), "x", "y"),
        ({"prompt": [u("q")], "chosen": [u("q"), a("x")], "rejected": [u("q"), a("y")]}, (USER,), "x", "y"),
        ({"prompt": "q", "chosen": [u("q"), a("x")], "rejected": [u("q"), a("y")]}, (USER,), "x", "y"),
        ({"prompt": "q", "chosen": [a("x")], "rejected": [a("y")]}, (USER,), "x", "y"),
        ({"chosen": [u("q"), a("x")], "rejected": [u("q"), a("y")]}, (USER,), "x", "y"),
        ({"chosen": [u("q"), a("x")], "rejected": [u("q"), a("x")]}, (USER,), "x", "x"),
        ({"chosen": "The sky is blue.", "rejected": "The sky is black."}, "The sky is", " blue.", " black."),
        (
            {"chosen": "\n\nHuman: q\n\nAssistant: I do", "rejected": "\n\nHuman: q\n\nAssistant: I do not"},
            "\n\nHuman: q\n\nAssistant:",
            " I do",
            " I do not",
        ),
    ],
)
def test_comparisons(row, prompt, chosen, rejected):
    found = comparison_from_row(row)
    sides = [s if isinstance(s, str) else s[0].content for s in (found.chosen, found.rejected)]
    assert (found.prompt, *sides) == (prompt, chosen, rejected)
    assert found.margin == 0.0


def test_margin_is_a_finite_number_that_is_not_negative():
    row = {"prompt": "q", "chosen": "x", "rejected": "y"}
    assert comparison_from_row(row | {"margin": 2}).margin == 2.0
    for margin in (-1, float("nan"), float("inf"), "1", True, [], 10**400):
        with pytest.raises(DataError, match="margin"):
            comparison_from_row(row | {"margin": margin})


def test_prompts_keep_the_other_fields_and_their_id():
    prompt = prompt_from_row({"prompt": "q", "gold": 3}, 7)
    assert (prompt.prompt_id, prompt.text, dict(prompt.columns)) == ("7", "q", {"gold": 3})
    assert prompt_from_row({"prompt": "q", "prompt_id": 12}, 0).prompt_id == "12"
    assert prompt_from_row({"messages": [u("q"), a("x")]}, 0).text == (USER,)
    assert prompt_from_row({"messages": [u("q")]}, 0).text == (USER,)
    assert prompt_from_row({"prompt": [u("q")]}, 0).question == "q"


def test_prompt_ids_are_unique():
    rows = [{"prompt": "a", "prompt_id": "x"}, {"prompt": "b"}, {"prompt": "c", "prompt_id": "x"}]
    with pytest.raises(DataError, match=r"(?s)f: 1 of 3 rows.*row 3: prompt_id 'x' is that of row 1 too"):
        read_prompts(rows, "f")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "expected an object with named fields, got null"),
        ([1], "got a list"),
        ({}, "the row is empty"),
        ({1: 2}, "field names must be strings"),
        ({"text": "x"}, "expected `prompt` and `completion`, or `messages`; the row has `text`"),
        ({"completion": "x"}, "`prompt` is missing; the row has `completion`"),
        ({"completion": "x", "prompt": None}, "`prompt` is null"),
        ({"prompt": "q", "completion": None}, "`completion` is null: expected `prompt` and `completion`"),
        ({"messages": None}, "`messages` is null: expected"),
        ({"prompt": 5, "completion": "x"}, "`prompt` must be a string or a list .* got a number"),
        ({"messages": [u("q"), {"role": None, "content": "x"}]}, "message 2: `role` is null; expected"),
        ({"prompt": " ", "completion": "x"}, "prompt is empty"),
        ({"prompt": "q", "completion": " "}, "answer is empty"),
        ({"prompt": "q", "completion": 3}, "`completion` must be a string or a list .* got a number"),
        ({"prompt": {"a": 1}, "completion": "x"}, "`prompt` must be a string or a list"),
        ({"prompt": "q", "completion": [a("x")]}, "the prompt is a string and `completion` a conversation"),
        ({"prompt": [u("q")], "completion": [u("x")]}, "begin and end with an assistant"),
        ({"prompt": [u("q"), a("z")], "completion": "x"}, "must end with a user"),
        ({"prompt": [u(" ")], "completion": "x"}, "all its messages are"),
        ({"messages": "x"}, "`messages` must be a list .* got a string"),
        ({"messages": []}, "empty list"),
        ({"messages": [u("q")]}, "no assistant message"),
        ({"messages": [a("q")]}, "begins with the assistant"),
        ({"messages": [u("q"), a("")]}, "answer is empty"),
        ({"messages": [u("q"), "x"]}, "message 2: expected .* got a string"),
        ({"messages": [u("q"), {"role": "bot", "content": "x"}]}, "role must be one of .* got 'bot'"),
        ({"messages": [u("q"), {"role": ["user"], "content": "x"}]}, "role must be one of"),
        ({"messages": [u("q"), {"role": "assistant"}]}, "message 2: `content` is missing; expected"),
        ({"messages": [{"from": "human", "value": "q"}]}, "message 1: `role` is missing, `content` is missing; expected"),
        ({"messages": [u("q"), a("x") | {"tool_calls": [1]}]}, "tool_calls"),
        ({"messages": [u([{"type": "image"}]), a("x")]}, "not text"),
        ({"prompt": "q\ud83d", "completion": "x"}, "surrogate"),
    ],
)
def test_bad_demonstrations_say_what_was_expected(row, message):
    with pytest.raises(DataError, match=message):
        demonstration_from_row(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q", "chosen": "x"}, "`rejected` is missing: expected `prompt`, `chosen`, `rejected`"),
        ({"prompt": "q", "chosen": None}, "`chosen` is null, `rejected` is missing"),
        ({"prompt": None, "chosen": "The x", "rejected": "The y"}, "`prompt` is null: expected text or messages"),
        ({"prompt": "", "chosen": "x", "rejected": "y"}, "the prompt is empty"),
        ({"prompt": "q", "chosen": 1, "rejected": "y"}, "`chosen` must be a string or a list .* got a number"),
        ({"prompt": "q", "chosen": "x", "rejected": [a("y")]}, "two kinds"),
        ({"chosen": "x", "rejected": [a("y")]}, "two kinds"),
        ({"chosen": "abc", "rejected": "xyz"}, "do not begin with the same text"),
        ({"chosen": "abc", "rejected": "abd"}, "do not begin with the same text"),
        ({"chosen": "same text", "rejected": "same text"}, "are the same text"),
        ({"chosen": [a("x")], "rejected": [a("y")]}, "do not begin with the same user message"),
        ({"chosen": [u("q"), a("x")], "rejected": [u("p"), a("y")]}, "do not begin with the same user"),
        ({"prompt": "other", "chosen": [u("q"), a("x")], "rejected": [u("q"), a("y")]}, "do not share"),
        ({"chosen": [u("q"), u("x")], "rejected": [u("q"), a("y")]}, "begin and end with an assistant"),
    ],
)
def test_bad_comparisons_say_what_was_expected(row, message):
    with pytest.raises(DataError, match=message):
        comparison_from_row(row)


@pytest.mark.parametrize("prompt_id", [True, 1.5, "", [], {}])
def test_bad_prompt_ids(prompt_id):
    with pytest.raises(DataError, match="prompt_id"):
        prompt_from_row({"prompt": "q", "prompt_id": prompt_id}, 0)
    with pytest.raises(DataError, match="expected `prompt` or `messages`"):
        prompt_from_row({"question": "q"}, 0)
    with pytest.raises(DataError, match="`prompt` is null: expected"):
        prompt_from_row({"prompt": None}, 0)


def test_one_error_names_all_bad_rows_and_pickles():
    good, bad = {"prompt": "q", "completion": "x"}, [{"prompt": "q", f"n{i}": 0} for i in range(32)]
    with pytest.raises(DataError) as caught:
        read_demonstrations([good, bad[0], good, *bad[1:31], good, bad[31]], "rows.jsonl")
    text = str(caught.value)
    assert text.startswith("rows.jsonl: 32 of 35 rows")
    assert "row 2:" in text
    assert "row 22:" in text
    assert text.endswith("and 12 more: rows 23-33, 35")
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_rows_with_the_same_problem_share_a_line():
    good, bad = {"prompt": "q", "completion": "x"}, {"prompt": "q"}
    with pytest.raises(DataError) as caught:
        read_demonstrations([good, bad, good, *[bad] * 30, good, bad], "rows.jsonl")
    head, line = str(caught.value).splitlines()
    assert head == "rows.jsonl: 32 of 35 rows cannot be used; correct or remove them."
    assert line.startswith("  rows 2, 4-33, 35: expected `prompt` and `completion`")
    with pytest.raises(DataError, match=r"rows 1, 3, 5, .* 39 and 10 further ones: "):
        read_demonstrations([bad, good] * 30, "rows.jsonl")


def test_unreadable_lines_and_wrong_columns_come_in_one_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"prompt": "q", "completion": "x"}\n{"prompt": 3, "completion": "x"}\r\n\nnot json\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError) as caught:
        read_demonstrations(read_lines(path), "x.jsonl")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("x.jsonl: 3 of 4 rows")
    assert [line[:9] for line in lines[1:]] == ["  row 2: ", "  row 3: ", "  row 4: "]
    for line, part in zip(lines[1:], ("got a number", "(line 4) not JSON", "(line 5) not UTF-8 at byte 13"), strict=True):
        assert part in line


def test_a_prompt_knows_its_file_and_row():
    prompts = read_prompts([{"prompt": "a"}, {"prompt": "b", "prompt_id": "x"}], "f.jsonl")
    assert [prompt.place for prompt in prompts] == ["f.jsonl, row 1", "f.jsonl, row 2"]
    assert prompt_from_row({"prompt": "a"}, 0).place == "prompt '0'"


def test_no_rows_at_all():
    for read in (read_demonstrations, read_comparisons, read_prompts):
        with pytest.raises(DataError, match="no rows"):
            read([], "empty.jsonl")


# ---- JSONL


def read_bytes(tmp_path, data):
    (tmp_path / "x.jsonl").write_bytes(data)
    return read_jsonl(tmp_path / "x.jsonl")


def test_marks_line_ends_blank_lines_and_unusual_characters_are_read(tmp_path):
    data = b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": "\xe2\x80\xa8\\ud83d\\ude00"}\n   \n{"a": null}'
    assert read_bytes(tmp_path, data) == [{"a": 1}, {"a": "\u2028\U0001f600"}, {"a": None}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "limit"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b'{"b": {"a": 1, "a": 2}}', "'a' occurs twice"),
        (b'{"a": "\\ud83d"}', "surrogate pair"),
        (b'{"\\udc00": 1}', "surrogate pair"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
        (b'{"a": ' + b"[" * 100000 + b"]" * 100000 + b"}", "nested deeper"),
        (b'{"a":' * 100000, "nested deeper"),
        (b"[1, 2]", "expected an object .* got a list"),
        (b"3", "got a number"),
        (b'{"a": 1', "not JSON"),
        (b'{"a": 1} {"a": 2}', "not JSON"),
        (b"\x00", "not JSON"),
        (b"[", "not one list over several lines"),
        (b'{"a": 1}\r{"a": 2}', "carriage returns alone"),
        (b'\xef\xbb\xbf{"a": 1}', "not JSON|BOM"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    with pytest.raises(DataError, match=rf"(?s)x\.jsonl: 1 of 3 rows.*row 2: .*{message}"):
        read_bytes(tmp_path, b'{"a": 1}\n' + line + b'\n{"a": 2}\n')


def test_a_bad_row_behind_blank_lines_names_its_line_too(tmp_path):
    with pytest.raises(DataError, match=r"row 2: \(line 4\) not JSON"):
        read_bytes(tmp_path, b'{"a": 1}\n\n\n{\n')


def test_utf16_and_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"(?s)1 of 1 row .*row 1: the file is UTF-16; save it as UTF-8\.$"):
        read_bytes(tmp_path, '{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(DataError, match="cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_jsonl(tmp_path)


def test_limit_stops_reading(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}\n{"a": 2}\nbroken\n')
    assert read_jsonl(tmp_path / "x.jsonl", limit=2) == [{"a": 1}, {"a": 2}]


def test_written_rows_come_back_and_hash_alike(tmp_path):
    rows = [{"a": "é\u2028\U0001f600\n", "b": [1, None, {"c": 0.1}]}, {}]
    one, two = (
        write_jsonl(tmp_path / "deep" / "one.jsonl", rows),
        write_jsonl(tmp_path / "two.jsonl", iter(rows)),
    )
    assert read_jsonl(one) == rows
    assert file_sha256(one) == file_sha256(two)
    assert (tmp_path / "two.jsonl").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("bad", [{"a": float("nan")}, {"a": object()}, {"a": "\ud83d"}, {(1,): 2}])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, bad):
    path = write_jsonl(tmp_path / "x.jsonl", [{"a": 1}])
    with pytest.raises(DataError, match="row 2 cannot be written"):
        write_jsonl(path, [{"a": 2}, bad])
    assert read_jsonl(path) == [{"a": 1}]
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_a_crash_in_the_rows_leaves_nothing(tmp_path):
    def rows():
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(tmp_path / "x.jsonl", rows())
    assert os.listdir(tmp_path) == []


# ---- fuzz

NAMES = [
    "prompt",
    "completion",
    "messages",
    "chosen",
    "rejected",
    "margin",
    "prompt_id",
    "role",
    "content",
    "type",
    "text",
]


def random_value(rng, depth=0):
    kind = rng.randrange(12 if depth < 4 else 7)
    if kind < 3:
        return rng.choice(
            ["", " ", "q", "hello you", "a\nb", "\n\nAssistant: x", "<|im_end|>", "\ud800", "\0", "é"]
        )
    if kind < 7:
        return rng.choice([None, True, 0, -1, 3.5, 10**30, float("nan"), float("inf")])
    if kind < 9:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 9:
        role = rng.choice(["user", "assistant", "system", "tool", "bot", None, 1])
        return {"role": role, "content": random_value(rng, depth + 2)}
    if kind == 10:
        return [rng.choice([u("q"), u("p"), a("x"), a("y"), {}, None]) for _ in range(rng.randrange(5))]
    return random_row(rng, depth + 1)


def random_row(rng, depth=0):
    return {rng.choice(NAMES): random_value(rng, depth) for _ in range(rng.randrange(6))}


def random_line(rng):
    text = json.dumps(random_row(rng) if rng.random() < 0.9 else random_value(rng))
    data = bytearray(text.encode())
    for _ in range(rng.choice([0, 0, 0, 1, 3])):  # damage
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(data).replace(b"\n", b" ")


def check_fuzz(tmp_path, count, seed):
    rng = random.Random(seed)
    (tmp_path / "fuzz.jsonl").write_bytes(b"\n".join(random_line(rng) for _ in range(count)))
    parsed = list(records.iter_jsonl(tmp_path / "fuzz.jsonl"))
    rows = [row for _, row in parsed if not isinstance(row, DataError)]
    rows += [random_row(rng) for _ in range(count)]  # rows that did not come through JSON
    readers = (demonstration_from_row, comparison_from_row, lambda row: prompt_from_row(row, 0))
    accepted = silent = 0
    for row in rows:
        for read in readers:
            try:
                read(row)
                accepted += 1
            except DataError as error:
                silent += not str(error)
    assert [number for number, _ in parsed] == list(range(1, len(parsed) + 1))
    assert silent == 0
    assert 0 < accepted < len(rows) * 3
    for read in (read_demonstrations, read_comparisons, read_prompts):
        with pytest.raises(DataError, match="cannot be used"):
            read(rows, "fuzz.jsonl")


def test_fuzz_2000_rows_raise_nothing_but_data_errors(tmp_path):
    check_fuzz(tmp_path, 2000, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_fuzz_10000_rows_raise_nothing_but_data_errors(tmp_path, seed):
    check_fuzz(tmp_path, 10000, seed)


@pytest.mark.parametrize(
    ("more", "label"),
    [({}, 1.0), ({"soft_label": 0.5}, 0.5), ({"soft_label": 0.75}, 1.0), ({"soft_label": 0.5, "label": 0.9}, 0.9)],
)
def test_a_tie_of_an_export_stays_a_tie(more, label):
    """What `tether collect export --ties both_orders` writes: neither row is a certain win."""
    row = {"prompt": "p", "chosen": "a", "rejected": "b", **more}
    assert comparison_from_row(row).label == label

