"""Packing and the cursor: every index once, budgets kept, order a function of the seed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.data.cursor import Cursor, epoch_order
from tether.data.packing import microbatches, minibatches
from tether.errors import DataError


@given(st.lists(st.integers(0, 40), max_size=40), st.integers(1, 60))
def test_microbatches_keep_the_budget_and_every_row(lengths, budget):
    groups = microbatches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(groups)
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget
    for group, after in pairwise(groups):  # no group could have taken one row more
        assert (len(group) + 1) * max(lengths[i] for i in group) > budget
        assert min(lengths[i] for i in group) >= max(lengths[i] for i in after)
    assert groups == microbatches(lengths, budget)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 4)), max_size=30), st.integers(1, 60))
def test_families_stay_together_where_one_pass_holds_them(rows, budget):
    lengths, names = [length for length, _ in rows], [name for _, name in rows]
    passes = microbatches(lengths, budget, names)
    assert sorted(i for one in passes for i in one) == list(range(len(rows)))
    for one in passes:
        assert len(one) == 1 or len(one) * max(lengths[i] for i in one) <= budget
    for name in set(names):
        members = [i for i, other in enumerate(names) if other == name]
        if len(members) * max(lengths[i] for i in members) <= budget:
            assert sum(bool(set(members) & set(one)) for one in passes) == 1
    for one in passes:  # packed again, a pass that fits stays as it is
        if len(one) * max(lengths[i] for i in one) <= budget:
            again = microbatches([lengths[i] for i in one], budget, [names[i] for i in one])
            assert [[one[i] for i in part] for part in again] == [one]


def test_microbatches_by_hand():
    assert microbatches([2, 5, 3, 5], 10, ["a", "b", "b", "a"]) == [[1, 2], [3, 0]]
    assert microbatches([2, 5, 3], 6) == [[1], [2, 0]]
    assert microbatches([9, 1, 1], 4) == [[0], [1, 2]]
    assert microbatches([], 4) == []
    with pytest.raises(DataError, match="at least 1"):
        microbatches([1], 0)
    with pytest.raises(DataError, match="negative"):
        microbatches([-1], 3)


@given(st.integers(0, 50), st.integers(1, 12), st.integers(0, 5))
def test_minibatches_split_evenly(num_rows, num_minibatches, seed):
    parts = minibatches(num_rows, num_minibatches, torch.Generator().manual_seed(seed))
    assert sorted(i for part in parts for i in part) == list(range(num_rows))
    assert len(parts) == min(num_rows, num_minibatches)
    sizes = {len(part) for part in parts}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert parts == minibatches(num_rows, num_minibatches, torch.Generator().manual_seed(seed))


def test_minibatches_refuse_nonsense_and_shuffle():
    parts = minibatches(100, 1, torch.Generator().manual_seed(0))
    assert parts[0] != list(range(100))
    with pytest.raises(DataError, match="at least 1"):
        minibatches(4, 0, torch.Generator())


@given(st.integers(1, 30), st.integers(0, 2**40), st.lists(st.integers(0, 45), max_size=12), st.data())
def test_cursor_gives_every_item_once_per_epoch_and_resumes(num_items, seed, takes, data):
    whole = Cursor(num_items, seed)
    seen = [whole.next(n) for n in takes]
    flat = [i for part in seen for i in part]
    for start in range(0, len(flat) - num_items + 1, num_items):
        assert sorted(flat[start : start + num_items]) == list(range(num_items))
    assert (whole.epoch, whole.position) == divmod(len(flat), num_items)
    stop = data.draw(st.integers(0, len(takes)))
    first = Cursor(num_items, seed)
    for n in takes[:stop]:
        first.next(n)
    resumed = Cursor.from_state(json.loads(json.dumps(first.state())))
    assert [resumed.next(n) for n in takes[stop:]] == seen[stop:]
    assert resumed.state() == whole.state()


def test_g1_resumed_rows_equal_those_of_an_unbroken_run():
    unbroken = Cursor(8, 0)
    steps = [unbroken.next(2) for _ in range(4)]
    first = Cursor(8, 0)
    assert [first.next(2), first.next(2)] == steps[:2]
    second = Cursor.from_state(first.state())
    assert [second.next(2), second.next(2)] == steps[2:]
    assert sorted(i for step in steps for i in step) == list(range(8))


def test_epochs_and_seeds_have_their_own_order():
    orders = {tuple(epoch_order(20, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert epoch_order(6, 0, 0).tolist() == epoch_order(6, 0, 0).tolist()


def test_epoch_order_is_pinned_so_that_old_checkpoints_resume():
    assert epoch_order(8, 0, 0).tolist() == [2, 5, 4, 0, 1, 7, 6, 3]


def test_first_item_is_uniform():
    counts = torch.bincount(torch.tensor([int(epoch_order(4, 7, e)[0]) for e in range(4000)]), minlength=4)
    assert ((counts - 1000).abs() < 120).all()  # 4 standard deviations


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"num_items": 8, "seed": 0, "epoch": 0},
        {"num_items": 8, "seed": 0, "epoch": 0, "position": 8},
        {"num_items": 8, "seed": 0, "epoch": -1, "position": 0},
        {"num_items": 0, "seed": 0, "epoch": 0, "position": 0},
        {"num_items": 8, "seed": 0, "epoch": 0, "position": True},
        {"num_items": 8, "seed": 0, "epoch": 0, "position": 0, "more": 1},
    ],
)
def test_broken_state_is_a_clear_error(state):
    with pytest.raises(DataError):
        Cursor.from_state(state)


def test_cursor_refuses_nonsense():
    with pytest.raises(DataError, match="at least 1"):
        Cursor(0, 0)
    with pytest.raises(DataError, match="0 or more"):
        Cursor(3, 0).next(-1)
    assert Cursor(3, 0).next(0) == []


def test_steps_within_an_epoch_end_at_its_border():
    cursor = Cursor(5, seed=0)
    sizes = [len(cursor.next_within_epoch(2)) for _ in range(6)]
    assert sizes == [2, 2, 1, 2, 2, 1]
