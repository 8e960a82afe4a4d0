"""S1: a pickle is never opened, whatever it is called and wherever it lies: refused or left alone, and its code does not run."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from tether.config import load_config
from tether.data.load import load_rows
from tether.errors import CheckpointError, ConfigError, DataError, ModelError
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.models.value import Critic
from tether.run.checkpoint import CheckpointStore
from tether.state import State


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "a pickle was opened"


@pytest.fixture
def bombs(marker):
    """The same pickle in every coat, by name."""
    bare = pickle.dumps(Bomb(marker))
    torch_zip = io.BytesIO()
    torch.save({"weight": Bomb(marker)}, torch_zip)
    array = io.BytesIO()
    np.save(array, np.array([Bomb(marker)], dtype=object), allow_pickle=True)
    plain_zip = io.BytesIO()
    with zipfile.ZipFile(plain_zip, "w") as archive:
        archive.writestr("archive/data.pkl", bare)
    return {"bare": bare, "torch": torch_zip.getvalue(), "npy": array.getvalue(), "zip": plain_zip.getvalue()}


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))


def test_the_bomb_is_live(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "other")))
    assert (tmp_path / "other").exists()


@pytest.mark.parametrize("coat", ["bare", "torch", "npy", "zip"])
@pytest.mark.parametrize("name", ["model.safetensors", "value_head.safetensors"])
def test_a_pickle_in_the_name_of_safetensors_is_refused(coat, name, bombs, model, marker):
    (model / name).write_bytes(bombs[coat])
    with pytest.raises(ModelError, match=r"cannot be (loaded|read)"):
        Policy.load(model, value_head="shared")
    if name == "model.safetensors":
        for load in (RewardModel.from_base, RewardModel.load, Critic.load):
            with pytest.raises(ModelError):
                load(model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth", "tf.ckpt"])
def test_a_folder_with_pickled_weights_alone_is_refused_with_a_remedy(name, bombs, model, marker):
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(bombs["torch"])
    with pytest.raises(ModelError, match=r"only pickled weights.*which can run code.*Convert it"):
        Policy.load(model)


def test_pickles_beside_a_model_are_left_alone(bombs, model, marker):
    for name in ("training_args.bin", "optimizer.pt", "rng.pt", "rng_state.pth", "scheduler.pt", "pytorch_model.bin", "adapter_model.bin"):
        (model / name).write_bytes(bombs["torch"])
    Policy.load(model)
    RewardModel.from_base(model)


@pytest.mark.parametrize("coat", ["bare", "torch", "npy", "zip"])
def test_pickles_in_a_checkpoint_are_refused_or_left_alone(coat, bombs, tmp_path, marker):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(3, State({"w": torch.ones(2)}, {"a": 1}), {"code": 1}, wait=True)
    found = store.latest()
    assert found is not None
    tensors = next(found.folder.glob("*.safetensors"))
    for name in ("optimizer.pt", "rng.pt", "training_args.bin", "state.pkl"):
        (found.folder / name).write_bytes(bombs[coat])
    again = store.latest()
    if again is not None:  # strangers in the folder may be refused as well
        assert torch.equal(again.load().tensors["w"], torch.ones(2))
    tensors.write_bytes(bombs[coat])
    with pytest.raises(CheckpointError):
        found.load()


def refuse(rows):
    for row in rows:
        if isinstance(row, DataError):
            raise row


@pytest.mark.parametrize("name", ["rows.npy", "rows.pkl", "rows.jsonl", "rows.parquet", "rows.pt"])
@pytest.mark.parametrize("coat", ["bare", "npy"])
def test_data_that_is_a_pickle_is_refused(name, coat, bombs, tmp_path, marker):
    (tmp_path / name).write_bytes(bombs[coat])
    with pytest.raises(DataError):
        refuse(load_rows(str(tmp_path / name)).rows)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mknod [{}]", "!!python/object/new:pathlib.Path [{}]", "!!python/name:os.system", "!!python/module:os"]
)
@pytest.mark.parametrize("place", ["name: {}\n", "{}\n", "model:\n  path: {}\n", "sft: &a\n  x: {}\n"])
def test_yaml_with_python_tags_is_refused(tag, place, tmp_path, marker):
    path = tmp_path / "run.yaml"
    path.write_text(place.format(tag.format(marker)))
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        load_config(path)


def test_state_that_is_written_holds_no_pickle(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, State({"w": torch.ones(2)}, {"a": 1}), {}, wait=True)
    found = store.latest()
    assert found is not None
    for file in found.folder.iterdir():
        data = file.read_bytes()
        assert file.suffix in {".json", ".safetensors"}
        assert json.loads(data) if file.suffix == ".json" else data[8:9] == b"{"
    assert save({"w": torch.ones(2)})[8:9] == b"{"
