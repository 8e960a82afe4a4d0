"""Lean norms and gated units: transformers' results to the last bit, its gradients to rounding, and less kept between the passes."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tether.models.adapters import LoraSpec, add_lora
from tether.models.elementwise import lean_layers
from tether.models.files import checkpoint_activations

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "mistral": (MistralForCausalLM, MistralConfig),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}
IDS_BT = torch.arange(24).remainder(61).view(2, 12)


def make(family="llama", **settings):
    model, config = FAMILIES[family]
    torch.manual_seed(0)
    made = model(config(**{**SIZES, **settings}))
    with torch.no_grad():  # norms of 1 would hide a forgotten weight
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()))
    return made


def run(model, autocast=torch.bfloat16):
    """Logits, and the gradient of every weight."""
    model.zero_grad()
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        logits_BTV = model(input_ids=IDS_BT, use_cache=False).logits
    logits_BTV.float().log_softmax(-1)[..., 7].sum().backward()
    return logits_BTV.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("autocast", [torch.bfloat16, None], ids=["bfloat16", "no autocast"])
def test_results_are_those_of_transformers(family, autocast):
    plain = make(family)
    lean = deepcopy(plain)
    assert lean_layers(lean) == 2 * 3  # two norms and a unit in each layer
    expected, gradients = run(plain, autocast)
    got, found = run(lean, autocast)
    assert torch.equal(got, expected)
    truth = run(deepcopy(plain).double(), None)[1]
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        if autocast is None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)
        else:  # no further from the truth than rounding takes transformers
            scale = truth[name].norm()
            assert (found[name] - truth[name]).norm() / scale <= 1.2 * (gradient - truth[name]).norm() / scale + 1e-3, name


def test_gradients_agree_with_finite_differences():
    from tether.models.elementwise import _Gate, _GateDown, _Norm

    x, w, up = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,), (3, 5)))
    assert torch.autograd.gradcheck(lambda x, w: _Norm.apply(x, w, 1e-5, torch.float64), (x, w))
    assert torch.autograd.gradcheck(_Gate.apply, (x, up))
    assert torch.autograd.gradcheck(_GateDown.apply, (x, up, torch.randn(3, 5, dtype=torch.float64, requires_grad=True)))
    assert torch.autograd.gradcheck(_GateDown.apply, (x, up, torch.randn(3, 5, dtype=torch.float64)))


def kept_bytes(model, autocast):
    own = {p.data_ptr() for p in model.parameters()}
    kept = {}

    def note(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(input_ids=IDS_BT.repeat(8, 5)[:, :60], use_cache=False).logits
    del out
    return sum(size for pointer, size in kept.items() if pointer not in own)


@pytest.mark.parametrize(("autocast", "share"), [(True, 0.72), (False, 0.79)])
def test_a_third_or_a_quarter_less_is_kept_for_the_backward_pass(autocast, share):
    plain = make(intermediate_size=96)
    lean = deepcopy(plain)
    lean_layers(lean)
    assert kept_bytes(lean, autocast) < share * kept_bytes(plain, autocast)


def test_adapters_copies_and_recomputation_go_through_it():
    plain = make()
    for model in (plain, lean := deepcopy(plain)):
        add_lora(model, LoraSpec(4, 8.0), seed=3)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, 0.01)
    lean_layers(lean)
    twin = deepcopy(lean)
    checkpoint_activations(twin)
    expected, gradients = run(plain)
    for model in (lean, twin):
        got, found = run(model)
        assert torch.equal(got, expected)
        assert found.keys() == gradients.keys()
    with torch.no_grad():  # a copy reads its own weights
        twin.model.layers[0].input_layernorm.weight.zero_()
    assert torch.equal(run(lean)[0], expected)
    assert not torch.equal(run(twin)[0], expected)


def test_models_of_other_arithmetic_are_left_alone():
    gemma = GemmaForCausalLM(GemmaConfig(**SIZES))
    assert lean_layers(gemma) == 0
    assert lean_layers(make(hidden_act="gelu")) == 2 * 2  # the norms alone
    bfloat16 = make().to(torch.bfloat16)
    expected = bfloat16(input_ids=IDS_BT).logits
    lean_layers(bfloat16)
    assert torch.equal(bfloat16(input_ids=IDS_BT).logits, expected)
