"""R2, R3, R7: a save or a resume that ends, or fails, at any of its calls to the system leaves the old checkpoint or the new one, whole."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from crash_tools import ERRORS, INPUTS, Shim, in_a_child, newest, state_of

from tether.errors import CheckpointError
from tether.run.checkpoint import CheckpointStore


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith("step-")]


def calls_of_a_save(folder: Path, keep: int = 2) -> list[tuple[str, str]]:
    """What one save of step 6 calls, in a copy of the folder."""
    copy = folder.with_name("counted")
    shutil.copytree(folder, copy)
    shim = Shim(copy)
    with pytest.MonkeyPatch.context() as patch:
        shim.install(patch)
        CheckpointStore(copy, keep).save(6, state_of(6), INPUTS)
    shutil.rmtree(copy)
    return shim.log


@pytest.mark.parametrize("keep", [1, 2])
def test_R2_R7_a_process_that_ends_at_any_call_of_a_save_leaves_the_old_or_the_new_checkpoint(folder, keep):
    calls = calls_of_a_save(folder, keep)
    assert len(calls) > 25
    seen = set()
    for k in range(1, len(calls) + 1):
        copy = folder.with_name(f"at-{k}")
        shutil.copytree(folder, copy)

        def ends(copy=copy, k=k):
            shim = Shim(copy, lambda number, name: os._exit(7) if number == k else None)
            with pytest.MonkeyPatch.context() as patch:
                shim.install(patch)
                CheckpointStore(copy, keep).save(6, state_of(6), INPUTS)

        assert in_a_child(ends) == 7, calls[k - 1]
        found = newest(copy)  # loads, and is what was saved
        seen.add(found)
        assert found in {4, 6}, calls[k - 1]
        CheckpointStore(copy, keep).save(8, state_of(8), INPUTS)  # after a restart
        assert newest(copy) == 8
        assert leftovers(copy) == []
        assert len(list(copy.iterdir())) == keep
    assert seen == {4, 6}


def test_R2_a_process_that_ends_at_any_call_of_a_resume_changes_nothing(folder):
    shim = Shim(folder)
    with pytest.MonkeyPatch.context() as patch:
        shim.install(patch)
        assert newest(folder) == 4
    assert shim.log
    for k in range(1, len(shim.log) + 1):

        def ends(k=k):
            with pytest.MonkeyPatch.context() as patch:
                Shim(folder, lambda number, name: os._exit(7) if number == k else None).install(patch)
                newest(folder)

        assert in_a_child(ends) == 7
        assert newest(folder) == 4


def test_every_file_is_on_the_disk_before_the_folder_has_its_name_and_the_name_before_an_older_one_goes(folder):
    """What a power cut needs, and a killed process cannot show: the order of the calls."""
    calls = calls_of_a_save(folder, keep=1)
    renamed = next(i for i, (name, path) in enumerate(calls) if name == "replace" and "step-00000006" in path)
    for file in ("weights.safetensors", "values.json", "manifest.json"):
        written = max(i for i, (name, path) in enumerate(calls) if path.endswith(file) and name in {"write", "save half done"})
        assert [i for i, (name, path) in enumerate(calls) if name == "fsync" and path.endswith(file) and written < i < renamed], file
    assert calls[renamed - 1][0] == "fsync"  # of the temporary folder
    after = [name for name, path in calls[renamed + 1 :] if path.endswith("counted")]
    retired = next(i for i, (name, path) in enumerate(calls) if name == "replace" and i > renamed)
    synced = next(i for i, (name, path) in enumerate(calls) if name == "fsync" and i > renamed)
    assert "fsync" in after
    assert renamed < synced < retired


def message_of_a_save(store: CheckpointStore) -> str:
    try:
        store.save(6, state_of(6), INPUTS)
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("lasting", [False, True], ids=["single", "lasting"])
@pytest.mark.parametrize("name", ERRORS)
def test_R3_any_call_that_fails_leaves_the_checkpoints_before_whole_and_says_what_it_needed(folder, name, lasting):
    calls = calls_of_a_save(folder)
    raised = 0
    for k in range(1, len(calls) + 1):
        copy = folder.with_name(f"at-{k}")
        shutil.copytree(folder, copy)

        def fails(number, _name, k=k):
            if number == k or (lasting and number > k):
                raise OSError(ERRORS[name], os.strerror(ERRORS[name]))

        store = CheckpointStore(copy)
        with pytest.MonkeyPatch.context() as patch:
            Shim(copy, fails).install(patch)
            message = message_of_a_save(store)
        if message:
            raised += 1
            assert all(told in message for told in (str(copy), os.strerror(ERRORS[name]), "bytes", "free")), calls[k - 1]
        assert newest(copy) in {4, 6}
        if not lasting:
            assert leftovers(copy) == [], calls[k - 1]
        store.save(8, state_of(8), INPUTS)  # the disk is well again
        assert newest(copy) == 8
        assert leftovers(copy) == []
        shutil.rmtree(copy)
    assert raised > 15


def test_a_save_in_the_background_that_fails_is_raised_by_the_next_one(folder):
    store = CheckpointStore(folder)
    with pytest.MonkeyPatch.context() as patch:

        def full(number, name):
            if name == "write":
                raise OSError(errno.ENOSPC, "No space left on device")

        Shim(folder, full).install(patch)
        store.save(6, state_of(6), INPUTS, wait=False)
        with pytest.raises(CheckpointError, match=r"step-00000006 could not be written.*needs [\d,]+ bytes and [\d,]+ are free"):
            store.join()
    store.save(8, state_of(8), INPUTS)
    assert newest(folder) == 8


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_R7_after_a_clean_save_exactly_keep_stay_also_across_a_restart_and_flagged_ones_besides(tmp_path, keep):
    for step in range(1, 9):
        CheckpointStore(tmp_path, keep).save(step, state_of(step), INPUTS, flags=("best",) if step == 2 else ())
        held = sorted(path.name for path in tmp_path.iterdir())
        newest_ones = {f"step-{s:08d}" for s in range(max(1, step - keep + 1), step + 1)}
        assert set(held) == newest_ones | ({"step-00000002"} if step >= 2 else set())


def test_R7_keeping_none_is_refused():
    with pytest.raises(ValueError, match="keep = 0: at least one checkpoint stays"):
        CheckpointStore("x", 0)
