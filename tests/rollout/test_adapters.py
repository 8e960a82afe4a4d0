"""Adapters in the sampler's own decoder: the numbers of the model's own forward pass, publishes that copy them alone, what is left to the
plain path.
"""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tether.backends.compute import Compute
from tether.errors import SamplerError
from tether.models.adapters import LoraSpec, adapter_of, adapters_off
from tether.models.elementwise import lean_layers
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.snapshot import Snapshot
from tether.rollout import copies
from tether.rollout import local as local_module
from tether.rollout.llama_weights import why_not_llama
from tether.rollout.local import LocalSampler
from tether.rollout.proof import WeightProof, probe_rows
from tether.types import Request, Sampling

CPU = torch.device("cpu")
EVERY = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BOUND = 1.3  # on eight policies of 32 tokens the ratio of two errors was .90 to 1.23 over fifteen draws, 1.05 on average
REQUESTS = [Request(f"p{i}", tuple(range(10 + i, 14 + 3 * i)), 3, i) for i in range(3)]


def adapted(targets=(), seed=0):
    """A tiny policy whose adapters have moved away from zero."""
    policy = Policy.load(resolve_model("tiny"), lora=LoraSpec(rank=4, alpha=8.0, targets=tuple(targets)))
    train(policy, seed)
    return policy


def train(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def sampler(policy, dtype=torch.float32, **more):
    return LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, dtype, **more)


def plain_sampler(policy, dtype, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(local_module, "why_not_llama", lambda model: "the test asks for it")
        return sampler(policy, dtype)


def told(of, policy):
    rows = probe_rows(policy)
    return of.forced_logprobs([row[:6] for row in rows], [row[6:] for row in rows])


@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj"), ("k_proj",), ("up_proj", "o_proj"), ("down_proj",)])
def test_answers_are_those_of_the_plain_path(targets, monkeypatch):
    policy = adapted(targets)
    fast, plain = sampler(policy), plain_sampler(policy, torch.float32, monkeypatch)
    assert (fast.plain, plain.plain) == (False, True)
    torch.testing.assert_close(told(fast, policy), told(plain, policy), atol=1e-5, rtol=0)
    with adapters_off(policy.model):
        base = plain.forced_logprobs([[5, 6]], [[7, 8]])
    assert float((plain.forced_logprobs([[5, 6]], [[7, 8]]) - base).abs().max()) > 1e-3  # the adapters matter
    drawn = [{(c.prompt_id, c.sample_index): c for c in of.generate(REQUESTS, Sampling(8))} for of in (fast, plain)]
    for place, completion in drawn[0].items():
        assert completion.token_ids == drawn[1][place].token_ids
        assert completion.sampler_logprobs == pytest.approx(drawn[1][place].sampler_logprobs, abs=1e-5)


def errors_in_bfloat16(policies, monkeypatch):
    """Mean distance in nats to the float32 of the model itself: of the decoder, and of the model's own pass, which is the trainer's."""
    found = {"fast": 0.0, "plain": 0.0}
    for policy in policies:
        truth = told(plain_sampler(policy, torch.float32, monkeypatch), policy)
        for kind, of in (("fast", sampler(policy, torch.bfloat16)), ("plain", plain_sampler(policy, torch.bfloat16, monkeypatch))):
            assert of.plain == (kind == "plain")
            found[kind] += float((told(of, policy) - truth).abs().mean())
    assert found["plain"] > 0
    return found["fast"] / found["plain"]


def test_in_bfloat16_the_decoder_is_as_near_to_the_truth_as_the_trainer(monkeypatch):
    assert errors_in_bfloat16((adapted(seed=seed) for seed in range(8)), monkeypatch) <= BOUND


def family(name):
    """A policy of another family, with norms and biases away from one and zero."""
    tiny = Policy.load(resolve_model("tiny"))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    common = {**sizes, "vocab_size": tiny.model.config.vocab_size, "max_position_embeddings": 128, "initializer_range": 0.2}
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**common)) if name == "qwen2" else Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16))
    policy = Policy(model.eval(), tiny.tokenizer)
    train(policy, 3)
    return policy


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_so_it_is_for_other_families(name, monkeypatch):
    def moved():
        policy = family(name)
        for seed in range(8):
            train(policy, seed)
            yield policy

    assert errors_in_bfloat16(moved(), monkeypatch) <= BOUND


def twin_that_was_taken_again(policy, dtype):
    """A sampler over a snapshot: it stands still while the policy is trained, and is exact after its refresh."""
    snapshot = Snapshot(policy, dtype)
    of = LocalSampler(snapshot.policy.model, policy.format.eos_ids, policy.format.pad_id, dtype, snapshot=snapshot)
    assert not of.plain
    before = told(of, policy)
    train(policy, 1)
    assert torch.equal(told(of, policy), before)
    of.refresh(1)
    assert set(of.copy_gaps().values()) == {0.0}
    return of


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_twin_whose_matrices_are_narrow_and_whose_biases_are_not(name):
    policy = family(name)
    of = twin_that_was_taken_again(policy, torch.bfloat16)
    again = Snapshot(policy, torch.bfloat16).policy
    assert torch.equal(told(of, policy), told(sampler(again, torch.bfloat16), policy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_publish_copies_the_adapters_and_nothing_else(dtype, monkeypatch):
    policy = adapted()
    of = sampler(policy, dtype)
    held = [(tensor, tensor.to_dense().clone() if tensor.is_mkldnn else tensor.clone()) for tensor in frozen(of)]
    monkeypatch.setattr(copies, "prepack", None)  # nothing is packed anew
    train(policy, 1)
    if dtype == torch.bfloat16:
        stale = {name for name, gap in of.copy_gaps().items() if gap}
        assert stale == {f"layers.{n}.{name}.lora_{side}" for n in range(len(of._packed.layers)) for name in EVERY for side in "AB"}
    of.refresh(1)
    assert set(of.copy_gaps().values()) == {0.0}
    assert all(torch.equal(tensor.to_dense() if tensor.is_mkldnn else tensor, before) for tensor, before in held)
    torch.testing.assert_close(told(of, policy), told(sampler(policy, dtype), policy), atol=0, rtol=0)


def frozen(of):
    weights = of._packed
    matrices = [m for layer in weights.layers for projection in layer.projections for m in projection.matrices]
    return [weights.embedding, weights.head, *matrices]


def test_in_float32_nothing_is_copied():
    policy = adapted()
    own = {parameter.data_ptr() for parameter in policy.parameters()}
    packed = sampler(policy)._packed
    low_rank = [m for layer in packed.layers for p in layer.projections for a in p.adapters for m in (a.down_rI, a.up_Or)]
    assert {tensor.data_ptr() for tensor in (*frozen(sampler(policy)), *low_rank)} <= own


def test_a_base_that_is_trained_beside_its_adapters_stops_the_run():
    policy = adapted()
    of = sampler(policy, torch.bfloat16)
    proof = WeightProof(policy, of, torch.bfloat16, Compute(CPU, torch.bfloat16, 4096).autocast)
    proof.check(0)
    with torch.no_grad():
        policy.model.model.layers[1].mlp.down_proj.base_layer.weight.add_(0.01)
    of.refresh(1)
    with pytest.raises(SamplerError, match=r"its copy of layers\.1\.down_proj is off by"):
        proof.check(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_twin_for_answers_drawn_ahead_keeps_its_adapters_until_it_is_taken_again(dtype):
    policy = adapted()
    of = twin_that_was_taken_again(policy, dtype)
    torch.testing.assert_close(told(of, policy), told(sampler(policy, dtype), policy), atol=0, rtol=0)


@pytest.mark.parametrize("change", ["off", "scale"])
def test_adapters_that_changed_under_the_sampler_are_said(change):
    policy = adapted()
    of = sampler(policy, torch.bfloat16)
    layer = policy.model.model.layers[0].self_attn.v_proj
    if change == "off":
        layer._disable_adapters = True
    else:
        layer.scaling["default"] = 3.0
    for ask in (lambda: of.refresh(1), of.copy_gaps):
        with pytest.raises(SamplerError, match=r"layers\.0\.v_proj were switched off, merged, added or scaled anew"):
            ask()


def inject(**settings):
    policy = Policy.load(resolve_model("tiny"))
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "lora_dropout": 0.0} | settings
    inject_adapter_in_model(LoraConfig(**chosen), policy.model, adapter_name="default")
    return policy


@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed:peft.utils.warning.PeftWarning", "ignore:Model has `tie_word_embeddings")
@pytest.mark.parametrize(
    "settings",
    [{"use_dora": True}, {"lora_dropout": 0.1}, {"lora_bias": True}, {"target_modules": ["embed_tokens"]}, {"target_modules": ["lm_head"]}],
    ids=lambda settings: next(iter(settings)) + str(next(iter(settings.values()))),
)
def test_adapters_of_another_kind_take_the_plain_path(settings):
    assert sampler(inject(**settings)).plain


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
def test_two_adapters_or_one_that_is_off_take_the_plain_path():
    policy = inject()
    assert not sampler(policy).plain
    with adapters_off(policy.model):
        assert sampler(policy).plain
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"]), policy.model, adapter_name="second")
    assert sampler(policy).plain


def test_what_an_adapter_adds_by_hand():
    policy = adapted(("q_proj",))
    layer = policy.model.model.layers[0].self_attn.q_proj
    adapter = adapter_of(layer)
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    expected = layer(x) - layer.base_layer(x)
    torch.testing.assert_close(adapter.scale * x @ adapter.down_rI.T @ adapter.up_Or.T, expected, atol=1e-5, rtol=1e-4)
    assert adapter.scale == 8.0 / 4
    assert adapter_of(layer.base_layer) is None
    assert adapter_of(policy.model.lm_head) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda layer: setattr(layer.mlp, "forward", lambda x: x), "the forward of model.layers.0.mlp was replaced"),
        (lambda layer: setattr(layer.self_attn, "scaling", 0.5), "attention is scaled by 0.5"),
        (lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 0.5), "another epsilon than the configuration"),
    ],
)
def test_a_patched_layer_is_answered_by_its_own_forward_pass(change, told) -> None:
    """accelerate's hooks replace ``forward`` on the object, and leave no trace in torch's."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2))
    lean_layers(model)
    assert why_not_llama(model) is None  # what this package puts there is known
    change(model.model.layers[0])
    assert told in (why_not_llama(model) or "")
