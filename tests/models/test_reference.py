"""The reference and LoRA: adapters off equal the base, a copy never moves, saves are merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tether.data.batches import TextBatch
from tether.errors import ModelError
from tether.models.adapters import LoraSpec, adapters_off, has_adapters
from tether.models.policy import Policy
from tether.models.reference import Reference


def train_a_little(policy: Policy, batch: TextBatch) -> None:
    optimiser = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):  # B of LoRA starts at zero: A moves from the second step on
        optimiser.zero_grad()
        (-policy.forward_response(batch, 1.0).logprobs_BT.sum()).backward()
        optimiser.step()


def test_adapter_off_equals_the_base_after_training(tiny: Path, batch: TextBatch) -> None:
    policy, base = Policy.load(tiny, lora=LoraSpec(4, 16), seed=1), Policy.load(tiny)
    expected = base.forward_response(batch, 0.7).logprobs_BT.detach()
    reference = Reference.adapter_off(policy)
    torch.testing.assert_close(policy.forward_response(batch, 0.7).logprobs_BT, expected)  # B = 0
    policy.enable_activation_checkpointing()
    train_a_little(policy, batch)
    moved = policy.forward_response(batch, 0.7).logprobs_BT.detach()
    assert float((moved - expected).abs().max()) > 1e-2
    found = reference.logprobs(batch, 0.7)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert not found.requires_grad
    assert torch.equal(policy.forward_response(batch, 0.7).logprobs_BT, moved)  # on again
    assert all(p.requires_grad == (".lora_" in name) for name, p in policy.model.named_parameters())


def test_adapters_come_back_after_an_error(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny, lora=LoraSpec(4, 16))
    train_a_little(policy, batch)
    before = policy.forward_response(batch, 1.0).logprobs_BT
    with pytest.raises(RuntimeError, match="inside"), adapters_off(policy.model):
        raise RuntimeError("inside")
    assert torch.equal(policy.forward_response(batch, 1.0).logprobs_BT, before)


def test_a_frozen_copy_never_moves_and_keeps_the_head_tied(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    reference = Reference.frozen_copy(policy)
    before = reference.logprobs(batch, 1.0)
    assert torch.equal(before, policy.forward_response(batch, 1.0).logprobs_BT)  # KL of equals is exactly 0
    policy.model.train()
    train_a_little(policy, batch)
    assert torch.equal(reference.logprobs(batch, 1.0), before)
    assert not torch.equal(policy.forward_response(batch, 1.0).logprobs_BT, before)
    with pytest.raises(ModelError, match="no adapters"):
        Reference.adapter_off(policy)


def test_reference_logprobs_enter_a_graph(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    ref_BT = Reference.frozen_copy(policy).logprobs(batch, 1.0)
    (policy.forward_response(batch, 1.0).logprobs_BT * ref_BT).sum().backward()


def test_lora_is_merged_on_save_and_the_policy_unchanged(
    tiny: Path, tmp_path: Path, batch: TextBatch
) -> None:
    policy = Policy.load(tiny, lora=LoraSpec(4, 16), seed=1)
    train_a_little(policy, batch)
    before = policy.weights_fingerprint()
    policy.save(tmp_path)
    assert policy.weights_fingerprint() == before
    assert has_adapters(policy.model)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again = Policy.load(tmp_path)
    torch.testing.assert_close(
        again.forward_response(batch, 1.0).logprobs_BT,
        policy.forward_response(batch, 1.0).logprobs_BT,
        atol=1e-5,
        rtol=0,
    )


def test_adapters_are_drawn_from_the_seed_and_bad_specs_refused(tiny: Path) -> None:
    one, same, other = (Policy.load(tiny, lora=LoraSpec(4), seed=s).weights_fingerprint() for s in (1, 1, 2))
    assert one == same
    assert one != other
    with pytest.raises(ModelError, match="rank >= 1"):
        LoraSpec(rank=0)
    with pytest.raises(ModelError, match="LoRA targets nowhere"):
        Policy.load(tiny, lora=LoraSpec(targets=("nowhere",)))


def test_a_copy_in_narrow_matrices_gives_the_bits_of_autocast(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    wide, narrow = Reference.frozen_copy(policy), Reference.frozen_copy(policy, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        expected_BT = wide.logprobs(batch, 0.7)
        assert torch.equal(narrow.logprobs(batch, 0.7), expected_BT)
    assert torch.equal(narrow.logprobs(batch, 0.7), expected_BT)  # and on its own
    kept = {name: weight.dtype for name, weight in narrow.weights().items()}
    assert kept["model.model.embed_tokens.weight"] == torch.float32  # rows of the embedding are added in float32
    assert kept["model.model.layers.0.mlp.up_proj.weight"] == torch.bfloat16
    size, full = (sum(w.numel() * w.element_size() for w in reference.weights().values()) for reference in (narrow, wide))
    assert size < full
    assert all(p.dtype == torch.float32 for p in policy.parameters())
