"""Batches: masks come from lengths, never from comparing ids with the pad id."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.data.batches import (
    PairBatch,
    PolicyBatch,
    TextBatch,
    last_live_index,
    length_mask,
    pad_examples,
    pad_values,
)
from tether.errors import DataError
from tether.text.chat import TokenizedExample, sampled_example


def bits(mask):
    return mask.int().tolist()


def labels(batch):
    return torch.where(batch.response_mask_BT, batch.token_ids_BT, -100).tolist()


def test_a1_end_token_is_trained_when_it_is_the_pad_too():
    batch = pad_examples([sampled_example([9], [5, 6, 2]), sampled_example([9], [5, 6, 7, 8, 2])], pad_id=2)
    assert batch.token_ids_BT.tolist()[0] == [9, 5, 6, 2, 2, 2]
    assert labels(batch)[0] == [-100, 5, 6, 2, -100, -100]
    assert bits(batch.attention_mask_BT)[0] == [1, 1, 1, 1, 0, 0]


def test_a1_end_token_in_the_prompt_keeps_its_attention():
    batch = pad_examples([sampled_example([5, 2, 6], [7, 2]), sampled_example([1], [1] * 5)], pad_id=2)
    assert batch.token_ids_BT.tolist()[0] == [5, 2, 6, 7, 2, 2]
    assert bits(batch.attention_mask_BT)[0] == [1, 1, 1, 1, 1, 0]
    assert batch.token_ids_BT[0][batch.response_mask_BT[0]].tolist() == [7, 2]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [([7, 8, 9], [1, 1, 1, 0, 0]), ([7, 2], [1, 1, 0, 0, 0]), ([7, 8, 9, 4, 5], [1] * 5), ([], [0] * 5)],
)
def test_a2_padding_is_no_response_with_or_without_an_end_token(answer, expected):
    batch = pad_examples([sampled_example([1], answer), sampled_example([1], [3] * 5)], pad_id=0)
    assert bits(batch.response_mask_BT)[0][1:] == expected
    assert bits(length_mask([len(answer)], 5))[0] == expected


def test_a6_the_mask_speaks_of_the_token_in_its_own_column():
    batch = pad_examples([TokenizedExample((10, 11, 12, 13), (False, False, True, False))], pad_id=0)
    logprobs_BT = torch.tensor([[0.0, -0.1, -0.2, -0.3]])
    assert logprobs_BT[batch.response_mask_BT].sum().item() == pytest.approx(-0.2)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_a6_flipping_one_mask_bit_changes_the_sum_by_that_token(live, data):
    at = data.draw(st.integers(0, len(live) - 1))
    flipped = [bit != (i == at) for i, bit in enumerate(live)]
    logprobs_BT = -torch.arange(len(live) + 1, dtype=torch.float64)[None]

    def total(mask):
        example = TokenizedExample(tuple(range(len(mask) + 1)), (False, *mask))
        return logprobs_BT[pad_examples([example], 0).response_mask_BT].sum().item()

    sign = 1 if flipped[at] else -1
    assert total(flipped) - total(live) == pytest.approx(sign * -(at + 1))


def test_e1_last_token_is_found_by_attention():
    attention_BT = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    assert last_live_index(attention_BT).tolist() == [3, 1, 2, 3]
    with pytest.raises(DataError, match=r"rows \[2\]"):
        last_live_index(torch.tensor([[True], [False]]))
    with pytest.raises(DataError, match="no attended token"):
        last_live_index(torch.zeros(1, 0, dtype=torch.bool))


def test_e1_last_token_does_not_depend_on_the_rest_of_the_batch():
    short = sampled_example([5], [2, 6, 2])
    alone = pad_examples([short], pad_id=2)
    among = pad_examples([short, *[sampled_example([1], [2] * n) for n in range(5, 12)]], pad_id=2)
    assert last_live_index(alone.attention_mask_BT).tolist() == [3]
    assert last_live_index(among.attention_mask_BT).tolist()[0] == 3


def test_rows_are_trimmed_to_the_longest_chosen_row():
    batch = pad_examples([sampled_example([1], [2] * n) for n in (1, 4, 2)], pad_id=0)
    assert batch.lengths() == [2, 5, 3]
    part = batch.rows([2, 0])
    assert part.token_ids_BT.tolist() == [[1, 2, 2], [1, 2, 0]]
    assert bits(part.response_mask_BT) == [[0, 1, 1], [0, 1, 0]]
    assert batch.rows([]).token_ids_BT.shape == (0, 0)
    assert batch.rows([1, 1]).num_rows == 2


def test_pairs_trim_each_side_on_its_own():
    chosen = pad_examples([sampled_example([1], [2] * n) for n in (1, 4)], pad_id=0)
    rejected = pad_examples([sampled_example([1], [3] * n) for n in (2, 1)], pad_id=0)
    pairs = PairBatch(chosen, rejected, torch.tensor([0.5, 0.0]))
    assert pairs.lengths() == [3, 5]
    part = pairs.rows([0])
    assert part.chosen.token_ids_BT.shape == (1, 2)
    assert part.rejected.token_ids_BT.shape == (1, 3)
    assert part.margins_B.tolist() == [0.5]
    assert part.to("cpu").num_rows == 1


def make_policy_batch():
    text = pad_examples([sampled_example([1], [2] * n) for n in (1, 4, 2)], pad_id=0)
    numbers_BT = torch.arange(15.0).reshape(3, 5)
    return PolicyBatch(text, numbers_BT, None, numbers_BT + 100, numbers_BT + 200, None, numbers_BT + 300)


def test_policy_batch_trims_every_tensor_alike_and_keeps_absent_ones_absent():
    part = make_policy_batch().rows([2, 0]).to("cpu")
    assert part.num_rows == 2
    assert part.lengths() == [3, 2]
    assert part.old_logprobs_BT.tolist() == [[10, 11, 12], [0, 1, 2]]
    assert part.sampler_logprobs_BT.tolist() == [[110, 111, 112], [100, 101, 102]]
    assert part.advantages_BT[0].tolist() == [210, 211, 212]
    assert part.old_values_BT.tolist()[1] == [300, 301, 302]
    assert part.ref_logprobs_BT is None
    assert part.returns_BT is None


def test_shapes_are_checked_when_a_batch_is_made():
    ids_BT, mask_BT = torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(AssertionError, match="boolean"):
        TextBatch(ids_BT, mask_BT.int(), mask_BT)
    with pytest.raises(AssertionError, match="against token ids"):
        TextBatch(ids_BT, mask_BT, mask_BT[:, :1])
    with pytest.raises(AssertionError, match="against token ids"):
        PolicyBatch(TextBatch(ids_BT, mask_BT, mask_BT), *[torch.zeros(1, 3)] * 6)
    text = TextBatch(ids_BT, mask_BT, mask_BT)
    with pytest.raises(AssertionError, match="rows"):
        PairBatch(text, text, torch.zeros(2))


def test_values_land_in_the_columns_of_their_tokens():
    batch = pad_examples([sampled_example([1, 1], [2, 2]), sampled_example([1], [2])], pad_id=0)
    assert pad_values([[-0.5, -0.25], [-1.0]], batch).tolist() == [[0, 0, -0.5, -0.25], [0, -1.0, 0, 0]]
    with pytest.raises(DataError, match="row 2 of 2"):
        pad_values([[-0.5, -0.25], []], batch)
    with pytest.raises(DataError, match="row 2 of 2"):
        pad_values([[-0.5, -0.25]], batch)


def test_nothing_to_batch_is_refused():
    with pytest.raises(DataError, match="at least one row"):
        pad_examples([], 0)
    with pytest.raises(DataError, match="between 0 and the width"):
        length_mask([3], 2)
