"""R6, G3, R20: what is not what was written is known, named, passed over with one warning, and never a traceback of a parser."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from crash_tools import newest
from torch import nn

from tether.backends.local import LocalWorker
from tether.config import OptimConfig
from tether.data.cursor import Cursor
from tether.errors import CheckpointError
from tether.run.checkpoint import FORMAT, CheckpointStore, _digest, read_checkpoint
from tether.run.keeper import Plain, StageKeeper
from tether.run.signals import StopSignal

FILES = ["weights.safetensors", "values.json", "manifest.json"]


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[min(len(data) - 1, int(place * len(data)))] ^= 0x10
    path.write_bytes(bytes(data))


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data)) or min(1, int(share > 0))])


DAMAGE = {
    **{f"flip-{place}": lambda path, place=place: flip(path, place) for place in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)},
    **{f"cut-{share}": lambda path, share=share: cut(path, share) for share in (0, 0.01, 0.5, 0.99)},
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "deep": lambda path: path.write_bytes(b"[" * 200_000),
    "not-text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "other-json": lambda path: path.write_bytes(b'["sha256"]'),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "missing": lambda path: path.unlink(),
    "link-to-nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "of-another-step": lambda path: shutil.copy(path.parent.with_name("step-00000002") / path.name, path),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_R6_G3_damage_is_named_passed_over_with_one_warning_and_raised_where_it_was_asked_for(folder, file, damage, caplog):
    last, before = folder / "step-00000004", folder / "step-00000002"
    DAMAGE[damage](last / file)
    with caplog.at_level(logging.WARNING):
        assert newest(folder) == 2
    told = {record.getMessage() for record in caplog.records}
    assert len(told) == 1
    named = last if damage == "of-another-step" and file == "manifest.json" else last / file  # a manifest of another step blames its files
    assert str(named) in next(iter(told))
    assert str(before) in next(iter(told))
    with pytest.raises(CheckpointError, match=str(named)):
        read_checkpoint(last)


def test_R6_two_files_that_changed_places_are_known(folder):
    last = folder / "step-00000004"
    for one, two in ((0, 1), (1, 2), (0, 2)):
        (last / FILES[one]).rename(last / "held")
        (last / FILES[two]).rename(last / FILES[one])
        (last / "held").rename(last / FILES[two])
        assert newest(folder) == 2
        (last / FILES[one]).rename(last / "held")
        (last / FILES[two]).rename(last / FILES[one])
        (last / "held").rename(last / FILES[two])
        assert newest(folder) == 4


def test_every_single_bit_of_a_manifest_counts(folder):
    path = folder / "step-00000004" / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            read_checkpoint(path.parent)


def test_only_damaged_ones_are_an_error_with_what_to_do(folder):
    for step in (2, 4):
        (folder / f"step-{step:08d}" / "values.json").unlink()
    told = r"no checkpoint in .* is whole: .*step-00000004.*step-00000002.*remove .*checkpoints and resume"
    with pytest.raises(CheckpointError, match=told):
        CheckpointStore(folder).latest()


# -- formats -----------------------------------------------------------------------------------------------------------------


def test_R20_a_checkpoint_of_a_newer_format_is_refused_and_nothing_older_is_taken_instead(folder):
    path = folder / "step-00000004" / "manifest.json"
    body = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"} | {"format": FORMAT + 1}
    path.write_text(json.dumps({**body, "sha256": _digest(body)}))
    with pytest.raises(CheckpointError, match=rf"has format {FORMAT + 1}, this version of Tether reads up to {FORMAT}: update Tether"):
        CheckpointStore(folder).latest()


GOLDEN = Path(__file__).parent / "golden"


class Messages:
    def __init__(self):
        self.texts = []

    def __call__(self, text):
        self.texts.append(text)


def small_training(store, steps: int, stop_after: int | None = None):
    """Two layers that learn to copy; the same parts that the loops of Tether attach."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    worker = LocalWorker([model], OptimConfig(learning_rate=1e-2, schedule="linear"), 6)
    cursor = Cursor(10, 3)
    keeper = StageKeeper(store, 1, steps + 1, {"settings": {"seed": 3}}, StopSignal(), Messages(), asynchronous=False)
    done = keeper.attach({"worker": worker, "cursor": Plain(cursor.state, cursor.go_to)})
    seen = []
    for step in range(done + 1, steps + 1):
        chosen = cursor.next(4)
        seen.append(chosen)
        inputs = nn.functional.one_hot(torch.tensor(chosen) % 6, 6).float()
        worker.accumulate((model(inputs) - inputs).square().mean())
        worker.step()
        keeper.after_step(step)
    return model, seen


def test_R20_a_checkpoint_that_an_older_version_wrote_loads_and_goes_on(tmp_path):
    """`golden/format-1` was written by `small_training(CheckpointStore(...), steps=3)` when the format was new."""
    shutil.copytree(GOLDEN / "format-1", tmp_path / "old")
    size = sum(file.stat().st_size for file in (GOLDEN / "format-1").rglob("*") if file.is_file())
    assert size <= 200 * 1024
    continued, seen = small_training(CheckpointStore(tmp_path / "old"), 6)
    whole, all_seen = small_training(CheckpointStore(tmp_path / "whole"), 6)
    assert seen == all_seen[3:]
    for one, two in zip(continued.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)  # another processor rounds otherwise
