"""The contract of the local sampler, on the decoder of its own (Llama) and on the plain path (GPT-2). Axes:
T tokens, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tether.errors import DoesNotFitError, NumericsError, SamplerError
from tether.maths.logprobs import filter_logits
from tether.models.adapters import LoraSpec, add_lora
from tether.rollout import local, request_key
from tether.rollout.local import LocalSampler
from tether.types import Completion, Request, Sampling, StopReason

VOCABULARY = 61
EOS = (7, 11)


def llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "tie_word_embeddings": True, "pad_token_id": 7, "bos_token_id": 1, "eos_token_id": 7,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            initializer_range=0.3,
        )
    ).eval()


def opt() -> OPTForCausalLM:
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, word_embed_proj_dim=32, init_std=0.3, dropout=0.1,
    )  # fmt: skip
    return OPTForCausalLM(config).eval()


_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip


def seeded(model: torch.nn.Module) -> torch.nn.Module:
    """Norms and biases away from one and zero, at which they start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def qwen2() -> torch.nn.Module:
    torch.manual_seed(0)
    return seeded(Qwen2ForCausalLM(Qwen2Config(**_SIZES)))


def qwen3(**changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return seeded(Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=16, **changes)))


def mistral(**changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return seeded(MistralForCausalLM(MistralConfig(**_SIZES, **({"sliding_window": None} | changes))))


MODELS = {
    "llama": llama,
    "untied llama": lambda: llama(tie_word_embeddings=False, num_key_value_heads=4, head_dim=16),
    "llama3 rope": lambda: llama(
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        }
    ),
    "gpt2": gpt2,
    "opt": opt,
    "biased llama": lambda: seeded(llama(attention_bias=True, mlp_bias=True)),
    "qwen2": qwen2,
    "qwen3": qwen3,
    "mistral": mistral,
}  # fmt: skip


def sampler(
    model: torch.nn.Module, eos: Sequence[int] = EOS, rows: int = 64, dtype: torch.dtype = torch.float32
) -> LocalSampler:
    return LocalSampler(model, eos, 7, dtype, max_rows=rows)


def requests(num_prompts: int = 5, num_samples: int = 4, longest: int = 17) -> list[Request]:
    rng = np.random.default_rng(3)
    lengths = [1, longest, *rng.integers(2, longest, num_prompts).tolist()][:num_prompts]
    return [
        Request(
            f"p{i}", tuple(rng.integers(12, VOCABULARY, n).tolist()), num_samples, request_key(0, 1, f"p{i}")
        )
        for i, n in enumerate(lengths)
    ]


def by_place(completions: Sequence[Completion]) -> dict[tuple[str, int], Completion]:
    found = {(c.prompt_id, c.sample_index): c for c in completions}
    assert len(found) == len(completions)
    return found


@torch.no_grad()
def recomputed(model: torch.nn.Module, prompt: Sequence[int], completion: Completion) -> list[float]:
    """Log-probabilities of the drawn tokens by one plain forward pass of one sequence, no padding."""
    s = completion.sampling
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    logits_TV = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    logprobs_TV = filter_logits(logits_TV, s.temperature, s.top_k, s.top_p).logprobs_NV
    return logprobs_TV.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(12, t) for t in (0.3, 0.5, 1.0, 1.7)]
    + [Sampling(12, 0.7, top_k=5), Sampling(12, 1.2, top_k=20, top_p=0.8)],
    ids=str,
)
def test_sampler_logprobs_are_those_of_the_model(name: str, sampling: Sampling) -> None:
    model = MODELS[name]()
    asked = requests()
    for completion in sampler(model, rows=9).generate(asked, sampling):
        prompt = next(r.prompt_ids for r in asked if r.prompt_id == completion.prompt_id)
        expected = recomputed(model, prompt, completion)
        np.testing.assert_allclose(completion.sampler_logprobs, expected, atol=1e-4)
        assert completion.sampling == sampling


@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_generate_of_transformers(name: str) -> None:
    model = MODELS[name]()
    model.generation_config.eos_token_id = list(EOS)
    model.generation_config.pad_token_id = 0
    asked = requests(num_samples=1)
    found = by_place(list(sampler(model, rows=3).generate(asked, Sampling(20, 0.0))))
    for request in asked:
        prompt = torch.tensor([request.prompt_ids])
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20
        )
        completion = found[request.prompt_id, 0]
        assert list(completion.token_ids) == out[0, prompt.shape[1] :].tolist()
        assert set(completion.sampler_logprobs) == {0.0}


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_batch_size_and_order_change_nothing(name: str) -> None:
    model = MODELS[name]()
    asked = requests(num_prompts=7, num_samples=5)
    shuffled = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    runs = [
        by_place(list(sampler(model, range(7, 13), rows).generate(order, Sampling(15, 1.5))))
        for rows, order in ((64, asked), (3, asked), (1, asked), (6, shuffled), (64, shuffled[:2]))
    ]
    lengths = {len(c.token_ids) for c in runs[0].values()}
    assert len(lengths) > 3, "the case must hold rows that end at different times"
    for run in runs[1:]:
        for place, completion in run.items():
            twin = runs[0][place]
            assert completion.token_ids == twin.token_ids
            assert completion.stop_reason == twin.stop_reason
            np.testing.assert_allclose(completion.sampler_logprobs, twin.sampler_logprobs, atol=1e-4)
    assert runs[0].keys() == runs[1].keys() == runs[2].keys() == runs[3].keys()


def test_rows_of_a_group_and_other_keys_differ() -> None:
    model, prompt = llama(), (20, 21, 22)
    asked = [Request(str(key), prompt, 16, key) for key in (1, 2)]
    found = by_place(list(sampler(model).generate(asked, Sampling(8))))
    assert len({c.token_ids for c in found.values()}) > 16


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "sampling", [Sampling(1), Sampling(1, 1.7), Sampling(1, 0.8, 6), Sampling(1, 1.3, 0, 0.7)], ids=str
)
def test_first_token_has_the_exact_distribution(name: str, sampling: Sampling) -> None:
    model, prompt, draws = MODELS[name](), (20, 33, 14), 6000
    completions = list(sampler(model).generate([Request("p", prompt, draws, 12345)], sampling))
    logits_1V = model(input_ids=torch.tensor([prompt])).logits[0, -1:].detach()
    probs = (
        filter_logits(logits_1V, sampling.temperature, sampling.top_k, sampling.top_p)
        .logprobs_NV[0]
        .exp()
        .numpy()
    )
    counts = np.bincount([c.token_ids[0] for c in completions], minlength=VOCABULARY)
    assert counts[probs == 0].sum() == 0
    common = probs * draws >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(probs[common], probs[~common].sum()) * draws
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 4, "about 1 in 10,000 for a right sampler"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_stop_reasons(name: str) -> None:
    model = MODELS[name]()
    asked = requests(num_prompts=6, num_samples=24)
    completions = list(sampler(model, rows=13).generate(asked, Sampling(6, 4.0)))
    at_budget = [c for c in completions if len(c.token_ids) == 6 and c.token_ids[-1] in EOS]
    assert at_budget, "the case needs an end token as the last of the budget"
    assert {c.token_ids[-1] for c in completions if c.stop_reason is StopReason.STOP} == set(EOS)
    for c in completions:
        assert (c.stop_reason is StopReason.STOP) == (c.token_ids[-1] in EOS)
        assert not set(c.token_ids[:-1]) & set(EOS)
        if c.stop_reason is StopReason.LENGTH:
            assert len(c.token_ids) == 6
        assert len(c.token_ids) == len(c.sampler_logprobs) == len(c.versions)


def test_completions_come_as_they_finish() -> None:
    lengths = [len(c.token_ids) for c in sampler(llama()).generate(requests(), Sampling(20, 1.5))]
    assert lengths == sorted(lengths)


def test_refresh_in_mid_generation_changes_weights_and_versions() -> None:
    model = llama().to(torch.float64)
    local = sampler(model)
    stream = local.generate(requests(num_samples=8), Sampling(10, 1.5))
    first = next(stream)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY, 32) * 5)
    local.refresh(3)
    rest = list(stream)
    assert set(first.versions) == {0}
    assert any(set(c.versions) == {0, 3} for c in rest)
    assert all(list(c.versions) == sorted(c.versions) for c in rest)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_float32_sampler_follows_the_trained_module_in_place(name: str) -> None:
    model = MODELS[name]()
    local, asked = sampler(model), requests()
    before = by_place(list(local.generate(asked, Sampling(8))))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    local.refresh(1)
    after = by_place(list(local.generate(asked, Sampling(8))))
    assert any(before[place].token_ids != after[place].token_ids for place in before)
    for completion in after.values():
        prompt = next(r.prompt_ids for r in asked if r.prompt_id == completion.prompt_id)
        np.testing.assert_allclose(
            completion.sampler_logprobs, recomputed(model, prompt, completion), atol=1e-4
        )
        assert set(completion.versions) == {1}


@pytest.mark.parametrize("name", ["llama", "gpt2", "biased llama", "qwen2", "qwen3", "mistral"])
def test_bf16_copy_stays_near_the_model(name: str) -> None:
    model = MODELS[name]()
    asked = requests(num_samples=8)
    gaps = [
        abs(a - b)
        for c in sampler(model, dtype=torch.bfloat16).generate(asked, Sampling(8))
        for a, b in zip(
            c.sampler_logprobs,
            recomputed(model, next(r.prompt_ids for r in asked if r.prompt_id == c.prompt_id), c),
            strict=True,
        )
    ]
    assert 0 < float(np.mean(gaps)) < 0.05


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_training_mode_is_restored_and_dropout_is_off(name: str) -> None:
    model = MODELS[name]().train()
    asked = requests()
    completions = list(sampler(model).generate(asked, Sampling(5)))
    assert model.training
    model.eval()
    for c in completions:
        prompt = next(r.prompt_ids for r in asked if r.prompt_id == c.prompt_id)
        np.testing.assert_allclose(c.sampler_logprobs, recomputed(model, prompt, c), atol=1e-4)


def test_gradient_mode_of_the_consumer_is_untouched() -> None:
    for _ in sampler(llama()).generate(requests(), Sampling(5)):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", (), 1, 1), "empty"),
        (Request("a", (20,) * 120, 1, 1), "too long: 120 prompt tokens"),
        (Request("a", (20, VOCABULARY), 1, 1), "outside the vocabulary"),
        (Request("a", (-1,), 1, 1), "outside the vocabulary"),
        (Request("a", (20,), 0, 1), "num_samples"),
        (Request("a", (20,), 1, -1), "key"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_requests_that_cannot_be_answered(name: str, request_: Request, message: str) -> None:
    with pytest.raises(SamplerError, match=message):
        sampler(MODELS[name]()).generate([request_], Sampling(9))


def test_the_last_position_may_be_used() -> None:
    (completion,) = sampler(llama(), eos=()).generate([Request("a", (20,) * 119, 1, 1)], Sampling(9))
    assert completion.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize(
    "sampling", [Sampling(0), Sampling(3, -1.0), Sampling(3, 1.0, -2), Sampling(3, 1.0, 0, 0.0)]
)
def test_contracts_that_name_no_distribution(sampling: Sampling) -> None:
    with pytest.raises(SamplerError):
        sampler(llama()).generate(requests(), sampling)


def test_no_requests_no_completions() -> None:
    assert list(sampler(llama()).generate([], Sampling(3))) == []


def test_a_broken_weight_is_an_error_not_a_token() -> None:
    model = llama()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(NumericsError, match="prompt 'p0'"):
        list(sampler(model).generate(requests(), Sampling(3)))


def half_biased() -> torch.nn.Module:
    model = llama()
    model.model.layers[1].self_attn.k_proj = torch.nn.Linear(32, 16)
    return model


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gpt2", "opt")])
def test_llama_and_its_kin_have_the_decoder_of_their_own_and_publishes_reach_it(name: str) -> None:
    """Copies in bfloat16 are those of a sampler that is made anew; every trained tensor is compared."""
    model = MODELS[name]()
    local = sampler(model, dtype=torch.bfloat16)
    assert not local.plain
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    stale = {name for name, gap in local.copy_gaps().items() if gap}
    assert len(stale) == len(list(model.parameters())) + (model.lm_head.weight is model.model.embed_tokens.weight)
    local.refresh(1)
    assert set(local.copy_gaps().values()) == {0.0}
    asked = [[3, 4, 5, 9], [8, 9, 10, 2]], [[1, 2, 3], [4, 5, 6]]
    torch.testing.assert_close(local.forced_logprobs(*asked), sampler(model, dtype=torch.bfloat16).forced_logprobs(*asked), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (gpt2, "not exactly one of LlamaForCausalLM"),
        (lambda: mistral(sliding_window=64), "window"),
        (lambda: qwen3(use_sliding_window=True, sliding_window=64, max_window_layers=1), "window"),
        (half_biased, "have a bias and others none"),
        (lambda: llama(hidden_act="gelu"), "silu"),
        (lambda: llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "rope"),
    ],
)
def test_other_models_take_the_plain_path_and_say_so_once(
    make: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        local = sampler(make())  # type: ignore[operator]
        list(local.generate(requests(), Sampling(3)))
        list(local.generate(requests(), Sampling(3)))
    assert local.plain
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("tether")]
    assert len(ours) == 1
    assert reason in ours[0]


def test_forward_hooks_and_replaced_layers_are_seen() -> None:
    hooked = llama()
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    assert sampler(hooked).plain
    replaced = llama()

    class Adapter(torch.nn.Linear):
        pass

    replaced.model.layers[1].self_attn.q_proj = Adapter(32, 32, bias=False)
    assert sampler(replaced).plain
    normed = qwen3()
    normed.model.layers[1].self_attn.q_norm = torch.nn.RMSNorm(16)
    assert sampler(normed).plain
    gated = llama()
    gated.model.layers[1].mlp.__class__ = type("Own", (type(gated.model.layers[1].mlp),), {})
    assert sampler(gated).plain
    attending = qwen2()
    attending.model.layers[0].self_attn.__class__ = type("Own", (type(attending.model.layers[0].self_attn),), {})
    assert sampler(attending).plain
    assert not sampler(llama()).plain


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("move", ["join", "step"])
def test_what_does_not_fit_is_answered_by_fewer_rows_at_once_with_the_same_answers(name: str, move: str, monkeypatch, caplog) -> None:
    model = MODELS[name]()
    asked, drawn = requests(), Sampling(max_new_tokens=6)
    expected = by_place(list(sampler(model, rows=16).generate(asked, drawn)))
    small = sampler(model, rows=16)
    session = local._PlainSession if small.plain else local._LlamaSession
    honest, rows = getattr(session, move), [0]

    def limited(self, given):
        rows[0] = max(rows[0], count := sum(map(len, given)) if move == "join" else len(given))
        if count > 5:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return honest(self, given)

    monkeypatch.setattr(session, move, limited)
    found = list(small.generate(asked, drawn))
    assert rows[0] > 5 >= small.max_rows
    assert len(found) == len(expected)
    for place, completion in by_place(found).items():
        assert completion.token_ids == expected[place].token_ids
        assert completion.sampler_logprobs == pytest.approx(expected[place].sampler_logprobs, abs=1e-5)
    assert "do not fit in memory" in caplog.text


def test_a_single_answer_that_does_not_fit_is_an_error_with_a_way_out(monkeypatch) -> None:
    def never(self, given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(local._LlamaSession, "step", never)
    with pytest.raises(DoesNotFitError, match=r"sampling\.max_new_tokens"):
        list(sampler(llama()).generate(requests(), Sampling(max_new_tokens=6)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sampler_that_rests_holds_no_copies_and_draws_the_same_after_the_next_publish(dtype: torch.dtype) -> None:
    model = llama()
    resting, awake = sampler(model, dtype=dtype), sampler(model, dtype=dtype)
    resting.rest()
    resting.rest()
    assert resting._packed is None
    assert not resting.plain
    with pytest.raises(SamplerError, match="rests, without the copies of weights version 0; refresh"):
        list(resting.generate(requests(), Sampling(3)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    resting.refresh(1)
    awake.refresh(1)
    assert set(resting.copy_gaps().values()) == {0.0}
    assert list(resting.generate(requests(), Sampling(6))) == list(awake.generate(requests(), Sampling(6)))


def test_under_adapters_and_on_the_plain_path_there_is_nothing_to_let_go_of() -> None:
    pytest.importorskip("peft")
    model = llama()
    add_lora(model, LoraSpec(rank=2), seed=0)
    for one in (sampler(model, dtype=torch.bfloat16), sampler(gpt2())):
        one.rest()
        assert len(list(one.generate(requests(), Sampling(3)))) == sum(request.num_samples for request in requests())
