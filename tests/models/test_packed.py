"""Packed rows: the same log-probabilities, values, scores and gradients as padded ones, whatever the rows share; plain rows elsewhere."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_rows import ragged_batch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from tether.data.batches import TextBatch, pad_examples
from tether.models.packed import NAME, enable_packing, pack_rows, packs
from tether.models.policy import Policy
from tether.models.reward import RewardModel
from tether.models.value import Critic
from tether.text.chat import TokenizedExample, sampled_example

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILY = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}


def shared_batch(seed: int = 0) -> TextBatch:
    """Three answers of different lengths to one prompt, two of equal length to another, one alone, in mixed order."""
    draw = random.Random(seed)

    def ids(count):
        return tuple(draw.randrange(4, 60) for _ in range(count))

    first, second, third = ids(5), ids(2), ids(3)
    rows = [(first, ids(4)), (second, ids(6)), (first, ids(1)), (third, ids(3)), (second, ids(6)), (first, ids(9))]
    return pad_examples([sampled_example(prompt, answer) for prompt, answer in rows], 0)


def padded(module):
    """A copy that takes the other path."""
    twin = copy.deepcopy(module)
    (twin.model if hasattr(twin, "model") else twin.trunk).set_attn_implementation("sdpa")
    return twin


def gradients(module, output):
    module.zero_grad()
    weights = torch.linspace(0.2, 1.0, output.numel()).view_as(output)
    (output * weights).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def assert_same(one, other, read):
    first, second = read(one), read(other)
    assert torch.allclose(first, second, atol=1e-5, rtol=0)
    expected = gradients(other, second)
    for name, gradient in gradients(one, first).items():
        assert float((gradient - expected[name]).abs().max()) <= 1e-4 * float(expected[name].abs().max()) + 1e-9, name



@pytest.fixture(scope="module")
def policy(tiny) -> Policy:
    return Policy.load(tiny, value_head="shared")


def test_a_prompt_that_rows_share_is_laid_once_and_rows_have_no_pads():
    rows = [sampled_example((5, 6), (7, 8, 9)), sampled_example((1,), (2,)), sampled_example((5, 6), (7,))]
    batch = pad_examples(rows, 0)
    packed = pack_rows(batch.token_ids_BT, batch.attention_mask_BT, batch.response_mask_BT)
    assert packed.ids_N[:8].tolist() == [1, 2, 5, 6, 7, 8, 9, 7]
    assert packed.positions_N[:8].tolist() == [0, 1, 0, 1, 2, 3, 4, 2]
    assert len(packed.ids_N) == len(packed.positions_N) == 16  # a multiple of 16
    assert packed.filling == 8
    assert packed.place_BT.tolist() == [[2, 3, 4, 5, 6], [0, 1, 0, 0, 0], [2, 3, 7, 0, 0]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=7))
def test_every_token_lies_where_its_row_reads_it(rows):
    examples = []
    for prompt, length, answer in rows:
        ids = (*[prompt] * length, *range(10, 10 + answer))
        examples.append(TokenizedExample(ids, tuple(n >= length for n in range(len(ids)))))
    batch = pad_examples(examples, 0)
    packed = pack_rows(batch.token_ids_BT, batch.attention_mask_BT, batch.response_mask_BT)
    mask = batch.attention_mask_BT
    columns = torch.arange(mask.shape[1]).expand_as(mask)
    assert torch.equal(packed.ids_N[packed.place_BT[mask]], batch.token_ids_BT[mask])
    assert torch.equal(packed.positions_N[packed.place_BT[mask]], columns[mask])
    tokens = len(packed.ids_N) - packed.filling
    assert tokens <= int(mask.sum())
    assert set(packed.place_BT[mask].tolist()) == set(range(tokens))
    assert len(packed.ids_N) % 16 == 0
    assert 0 <= packed.filling < 16


def test_other_pads_are_left_to_the_padded_path():
    ids, left = torch.ones(2, 3, dtype=torch.long), torch.tensor([[False, True, True], [True, True, True]])
    assert pack_rows(ids, left, left) is None
    assert pack_rows(ids, torch.tensor([[False] * 3, [True] * 3]), left) is None


@pytest.mark.parametrize("batch", [shared_batch(), ragged_batch(), ragged_batch(((3, 2), (3, 2)))], ids=["shared", "ragged", "equal"])
def test_a_policy_computes_the_same_numbers(policy, batch):
    assert packs(policy.model.get_decoder())
    other = padded(policy)
    assert_same(policy, other, lambda p: p.forward_response(batch, 0.7).logprobs_BT)
    assert_same(policy, other, lambda p: p.forward_response(batch, 1.0, entropy=True).entropy_BT)
    with torch.no_grad():
        values = [p.value_head.weight.fill_(0.1) for p in (policy, other)]
    assert len(values) == 2
    assert_same(policy, other, lambda p: p.forward_response(batch, 1.0, values=True).values_BT)


def test_so_do_a_reward_model_and_a_critic(tiny, policy):
    model, critic = RewardModel.from_base(tiny, seed=1), Critic.beside(policy.model)
    batch = shared_batch()
    assert_same(model, padded(model), lambda m: m.score_batch(batch))
    with torch.no_grad():
        critic.value_head.weight.fill_(0.1)
    assert_same(critic, padded(critic), lambda c: c.forward_values(batch))


def test_recomputed_activations_and_adapters_see_the_layout_too(tiny):
    from tether.models.adapters import LoraSpec

    policy = Policy.load(tiny, lora=LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "v_proj")))
    other = padded(policy)
    policy.enable_activation_checkpointing()
    assert packs(policy.model.get_decoder())
    assert_same(policy, other, lambda p: p.forward_response(shared_batch(), 1.0).logprobs_BT)


@pytest.mark.parametrize(
    "config", [LlamaConfig(**FAMILY), Qwen2Config(**FAMILY), Qwen3Config(**FAMILY), MistralConfig(**FAMILY, sliding_window=None)]
)
def test_decoders_with_plain_attention_pack(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    assert enable_packing(model)
    batch = shared_batch()
    rows = pack_rows(batch.token_ids_BT, batch.attention_mask_BT, batch.response_mask_BT)
    assert rows is not None


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**FAMILY, sliding_window=16),
        Qwen2Config(**FAMILY, use_sliding_window=True, sliding_window=16, max_window_layers=1),
        GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4),
    ],
    ids=["mistral window", "qwen window", "gpt2"],
)
def test_others_are_padded_or_pass_the_probe(config):
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    packed = enable_packing(model)
    assert model.config._attn_implementation == (NAME if packed else "sdpa")
    if isinstance(config, MistralConfig | Qwen2Config):
        assert not packed


def test_a_chosen_implementation_is_left_alone():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**FAMILY), attn_implementation="eager")
    assert not enable_packing(model)
    assert model.config._attn_implementation == "eager"


def test_a_model_that_attends_otherwise_fails_the_probe(monkeypatch):
    from transformers.models.llama import modeling_llama

    honest = modeling_llama.LlamaAttention.forward

    def peeking(self, *args, **kwargs):  # looks at the whole sequence besides
        out, weights = honest(self, *args, **kwargs)
        return out + 0.01 * out.mean(1, keepdim=True), weights

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", peeking)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**FAMILY), attn_implementation="sdpa")
    assert not enable_packing(model)
    assert model.config._attn_implementation == "sdpa"


def test_the_saved_model_says_nothing_of_it(policy, tmp_path):
    policy.save(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
