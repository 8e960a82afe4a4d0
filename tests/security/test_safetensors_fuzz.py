"""S2: a safetensors file that is not one ends in an error of ours, in time and without asking for memory that its size does not justify."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tether.errors import CheckpointError, ModelError, TetherError
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.value import load_head, zero_head
from tether.plan.model import parameter_count
from tether.run.checkpoint import Checkpoint, CheckpointStore
from tether.state import State

SECONDS = 5  # on a quiet machine each takes milliseconds; the target of 1 s is for one


def framed(header: bytes, body: bytes = b"\0" * 64) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def with_header(**tensors) -> bytes:
    return framed(json.dumps(tensors).encode())


CASES = {
    "empty": b"",
    "header of 2^64-1": b"\xff" * 8 + b"{}",
    "header of 0": (0).to_bytes(8, "little"),
    "header past the file": (1000).to_bytes(8, "little") + b"{}",
    "header over 100 MB": (200_000_000).to_bytes(8, "little") + b"{}",
    "header no JSON": framed(b"\x80\x04hello world"),
    "header a list": framed(b"[]"),
    "deep header": framed(b"[" * 100_000),
    "overlap": with_header(a=tensor(), b=tensor(offsets=(4, 12))),
    "descending": with_header(a=tensor(offsets=(8, 0))),
    "past the end": with_header(a=tensor(shape=(200,), offsets=(0, 800))),
    "shape overflow": with_header(a=tensor(shape=(2**62, 2**62), offsets=(0, 8))),
    "negative shape": with_header(a=tensor(shape=(-2,), offsets=(0, 8))),
    "wrong size": with_header(a=tensor(shape=(3,), offsets=(0, 8))),
    "unknown dtype": with_header(a=tensor(dtype="OBJECT")),
    "duplicate keys": framed(b'{"a":%s,"a":%s}' % (json.dumps(tensor(shape=(1,), offsets=(0, 4))).encode(), json.dumps(tensor()).encode())),
    "no offsets": framed(b'{"a":{"dtype":"F32","shape":[1]}}'),
}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Path(shutil.copytree(resolve_model("tiny"), tmp_path_factory.mktemp("fuzz") / "model"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    store = CheckpointStore(tmp_path_factory.mktemp("store"))
    store.save(1, State({"w": torch.ones(64)}, {}), {}, wait=True)
    found = store.latest()
    assert found is not None
    return found


def refused(data: bytes, model: Path, checkpoint: Checkpoint) -> None:
    """Every loader of ours on ``data``: an error of ours, in time, in bounded memory."""
    tensors = next(checkpoint.folder.glob("*.safetensors"))
    before, started = peak_mib(), time.process_time()
    for name in ("model.safetensors", "value_head.safetensors"):
        (model / name).write_bytes(data)
    tensors.write_bytes(data)
    with pytest.raises(ModelError):
        Policy.load(model)
    with pytest.raises(ModelError):
        load_head(zero_head(8), model)
    with pytest.raises(CheckpointError):
        checkpoint.load()
    with contextlib.suppress(TetherError):
        parameter_count(model)
    assert time.process_time() - started < SECONDS
    assert peak_mib() - before <= 50 + len(data) / 2**20


@pytest.mark.parametrize("case", CASES)
def test_s2_hostile_headers(case, model, checkpoint):
    refused(CASES[case], model, checkpoint)


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(4), rng.randrange(min(len(changed), 400))
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 30)]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 30))
        else:
            del changed[max(9, rng.randrange(len(changed))) :]
    return bytes(changed)


def test_s2_a_thousand_random_mutations(tmp_path):
    """A head of our own through our loader: what passes has the names, shapes and numbers of a head."""
    head = zero_head(16)
    save_file({"weight": torch.ones(1, 16), "bias": torch.ones(1)}, tmp_path / "value_head.safetensors")
    whole, rng = (tmp_path / "value_head.safetensors").read_bytes(), random.Random(0)
    before = peak_mib()
    for _ in range(1000):
        (tmp_path / "value_head.safetensors").write_bytes(mutated(whole, rng))
        started = time.process_time()
        try:
            load_head(head, tmp_path)
        except ModelError:
            continue
        finally:
            assert time.process_time() - started < SECONDS
        assert load_file(tmp_path / "value_head.safetensors").keys() == {"weight", "bias"}
    assert peak_mib() - before <= 50
