"""Prepacked matrices: the bits of plain ones at every number of rows, through construction, publish and proof; what is taken where they
cannot be had; no second set in memory.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tether.rollout import copies, llama_weights, prepacked
from tether.rollout.local import LocalSampler
from tether.rollout.prepacked import FEW_ROWS, PIECE, prepack, product, why_not_prepacked, wide_product
from tether.types import Request, Sampling

BFLOAT16 = torch.bfloat16
WHY_NOT = why_not_prepacked([torch.ones(96, 96, dtype=BFLOAT16)])
where_it_works = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}")
REQUESTS = [Request(f"p{i}", tuple(range(10 + i, 14 + 3 * i)), 4, i) for i in range(3)]


def model(*, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=80, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.2, tie_word_embeddings=tied, pad_token_id=7, bos_token_id=1, eos_token_id=7,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def sampler(of: LlamaForCausalLM, rows: int = 64, dtype: torch.dtype = BFLOAT16) -> LocalSampler:
    return LocalSampler(of, [7], 7, dtype, max_rows=rows)


def answers(of: LocalSampler) -> dict[tuple[str, int], tuple[tuple[int, ...], tuple[float, ...]]]:
    drawn = of.generate(REQUESTS, Sampling(12, 1.3))
    return {(c.prompt_id, c.sample_index): (c.token_ids, c.sampler_logprobs) for c in drawn}


def train(of: LlamaForCausalLM) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in of.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def refuse(monkeypatch) -> None:
    monkeypatch.setattr(llama_weights, "why_not_prepacked", lambda matrices, **more: "the test asks for it")


# -- the same bits -----------------------------------------------------------------------------------------------------------


@where_it_works
@pytest.mark.parametrize(("width_out", "width_in"), [(960, 576), (576, 1536), (2100, 576), (61, 80), (96, 43)])
def test_a_product_has_the_bits_of_the_plain_one_at_any_number_of_rows(width_out, width_in):
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        matrix = torch.randn(width_out, width_in, generator=generator).to(BFLOAT16)
        x = torch.randn(200, width_in, generator=generator).to(BFLOAT16)
        packed = prepack(matrix)
        for rows in (*range(1, 20), 63, 64, 65, 200):
            assert torch.equal(product(x[:rows], packed), F.linear(x[:rows], matrix)), rows


@where_it_works
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [64, 5, 1])
def test_a_sampler_draws_what_one_with_plain_matrices_draws(tied, rows, monkeypatch):
    of = model(tied=tied)
    fast = sampler(of, rows)
    refuse(monkeypatch)
    slow = sampler(of, rows)
    assert (fast._packed.head.is_mkldnn, slow._packed.head.is_mkldnn) == (True, False)
    assert answers(fast) == answers(slow)


@where_it_works
@pytest.mark.parametrize("tied", [True, False])
def test_a_sampler_after_a_publish_is_a_fresh_one(tied):
    of = model(tied=tied)
    published = sampler(of)
    before = answers(published)
    train(of)
    assert answers(published) == before, "copies are of one moment"
    published.refresh(1)
    assert answers(published) == answers(sampler(of)) != before


@where_it_works
def test_a_publish_in_mid_generation_takes_effect_from_the_next_token_on(monkeypatch):
    def with_publish(of: LlamaForCausalLM) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        local = sampler(of)
        stream = local.generate(REQUESTS, Sampling(12, 1.3))
        drawn = [next(stream)]
        train(of)
        local.refresh(1)
        drawn += stream
        return [(c.token_ids, c.versions) for c in drawn]

    fast = with_publish(model())
    refuse(monkeypatch)
    assert fast == with_publish(model())
    assert any(set(versions) == {0, 1} for _, versions in fast)


@where_it_works
def test_products_with_a_bias_have_the_same_bits(monkeypatch):
    def biased() -> Qwen2ForCausalLM:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=61, hidden_size=80, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, initializer_range=0.2, pad_token_id=7, bos_token_id=1, eos_token_id=7,
        )  # fmt: skip
        of = Qwen2ForCausalLM(config).eval()
        train(of)
        return of

    fast = sampler(biased())
    assert fast._packed.why_plain is None
    assert fast._packed.layers[0].qkv.biases[0].shape == (80 + 2 * 40,)
    expected = answers(fast)
    refuse(monkeypatch)
    plain = sampler(biased())
    assert plain._packed.why_plain == "the test asks for it"
    assert answers(plain) == expected


@where_it_works
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("field", "named"),
    [("qkv", ["q_proj", "k_proj", "v_proj"]), ("out", ["o_proj"]), ("gate_up", ["gate_proj", "up_proj"]), ("down", ["down_proj"])],
)
def test_the_proof_reads_prepacked_copies(tied, field, named):
    of = model(tied=tied)
    old, local = sampler(of)._packed, sampler(of)
    train(of)
    assert all(gap > 0 for gap in local.copy_gaps().values())
    local.refresh(1)
    assert set(local.copy_gaps().values()) == {0.0}
    layers = local._packed.layers
    stale = replace(layers[1], **{field: getattr(old.layers[1], field)})
    local._packed = replace(local._packed, layers=(layers[0], stale))
    assert [name for name, gap in local.copy_gaps().items() if gap] == [f"layers.1.{name}" for name in named]
    local._packed = replace(local._packed, layers=layers, head=old.head)
    assert [name for name, gap in local.copy_gaps().items() if gap] == ["lm_head"]


# -- where it is not taken ---------------------------------------------------------------------------------------------------


def test_float32_reads_the_trained_weights_and_says_so(caplog):
    of = model()
    with caplog.at_level(logging.INFO, "tether"):
        local = sampler(of, dtype=torch.float32)
    assert caplog.messages == ["sampler: matrices are not prepacked, because the trained weights are read where they lie (none is copied)"]
    assert local._packed.head.data_ptr() == of.lm_head.weight.data_ptr()


def test_bfloat16_weights_are_read_themselves_too():
    of = model().to(BFLOAT16)
    assert sampler(of)._packed.head.data_ptr() == of.lm_head.weight.data_ptr()


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (torch.ones(4, 4), "products are float32 on cpu, not bfloat16 on a CPU"),
        (torch.ones(4, 4, dtype=BFLOAT16, device="meta"), "products are bfloat16 on meta, not bfloat16 on a CPU"),
        (torch.ones(64, 64, dtype=BFLOAT16), "a matrix of (64, 64) is too small for oneDNN"),
    ],
)
def test_other_devices_precisions_and_sizes_multiply_plain_matrices(matrix, reason):
    assert why_not_prepacked([matrix]) == reason


def cannot(matrix):
    raise RuntimeError("reorder: bf16 path needs another cpu\nat Linear.cpp")


def without_operator(matrix):
    raise AttributeError("no _reorder_linear_weight")


@pytest.mark.parametrize(("broken", "said"), [(cannot, "bf16 path needs another cpu)"), (without_operator, "no _reorder_linear_weight)")])
def test_a_machine_that_cannot_multiplies_plain_matrices_and_says_why(broken, said, monkeypatch):
    plain = model()
    monkeypatch.setattr(prepacked, "prepack", broken)
    local = sampler(plain)
    assert local.description.startswith("sampler: matrices are not prepacked, because oneDNN does not do it on this machine (")
    assert local.description.endswith(said)
    assert not local._packed.head.is_mkldnn
    before = answers(local)
    train(plain)
    local.refresh(1)
    assert answers(local) == answers(sampler(plain)) != before


@where_it_works
def test_a_machine_that_rounds_otherwise_multiplies_plain_matrices(monkeypatch):
    honest = prepacked.product
    monkeypatch.setattr(prepacked, "product", lambda x, matrix, bias: honest(x, matrix, bias) * (1 + matrix.is_mkldnn * len(x) // 64))
    local = sampler(model())
    assert local.description == (
        "sampler: matrices are not prepacked, because oneDNN multiplies a matrix of (160, 80) with other rounding on this machine"
    )


# -- memory and calls --------------------------------------------------------------------------------------------------------


@where_it_works
@pytest.mark.parametrize("tied", [True, False])
def test_plain_matrices_are_gone_once_they_are_packed(tied, monkeypatch):
    """At most one at a time, and the rows of a tied embedding."""
    seen: list[weakref.ref] = []
    most = 0

    def watched(matrix):
        nonlocal most
        seen.append(weakref.ref(matrix))
        most = max(most, len(alive()))
        return prepack(matrix)

    def alive() -> list[torch.Tensor]:
        found = {id(kept): kept for kept in (ref() for ref in seen) if kept is not None}
        return list(found.values())

    for module in (llama_weights, copies):
        monkeypatch.setattr(module, "prepack", watched)
    of = model(tied=tied)
    local = sampler(of)
    for version in (0, 1):
        kept = alive()
        assert len(seen) == (version + 1) * (2 * 4 + 1)
        assert [matrix is local._packed.embedding for matrix in kept] == [True] * tied
        assert most <= 1 + tied
        del kept
        local.refresh(1)
    matrices = [m for layer in local._packed.layers for projection in layer.projections for m in projection.matrices]
    assert all(matrix.is_mkldnn for matrix in (*matrices, local._packed.head))


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@where_it_works
def test_a_decode_step_multiplies_by_no_plain_matrix():
    local = sampler(model())

    def calls(new_tokens: int) -> Counter[str]:
        with Calls() as seen:
            list(LocalSampler.generate(local, [Request("p", (10, 11), 4, 0)], Sampling(new_tokens)))
        return seen.count

    local.eos_ids = frozenset()
    short, long = calls(4), calls(5)
    assert long["_linear_pointwise"] - short["_linear_pointwise"] == 2 * 4 + 1
    assert long["mm"] == long["addmm"] == 0


# -- float32 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width_out", [7, PIECE, 2 * PIECE + 3])
@pytest.mark.parametrize("rows", [0, 1, 5, FEW_ROWS, FEW_ROWS + 1])
def test_float32_products_with_the_matrix_first_are_those_of_the_plain_order(rows, width_out):
    generator = torch.Generator().manual_seed(0)
    x, matrix, bias = (torch.randn(*shape, generator=generator) for shape in ((rows, 24), (width_out, 24), (width_out,)))
    expected = (x.double() @ matrix.double().T).float()
    torch.testing.assert_close(product(x, matrix), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(product(x, matrix, bias), expected + bias, atol=1e-5, rtol=1e-5)
    wide = wide_product(x, matrix)
    torch.testing.assert_close(wide, expected, atol=1e-5, rtol=1e-5)
    assert wide.is_contiguous()


def test_a_float32_step_puts_the_large_factor_first():
    """The library under ``mm`` copies its second factor: that is to be the one of few rows."""
    local = sampler(model(), dtype=torch.float32)
    firsts: list[int] = []

    class Factors(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ == "mm":
                firsts.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    local.eos_ids = frozenset()
    with Factors():
        list(LocalSampler.generate(local, [Request("p", (10, 11), 4, 0)], Sampling(3)))
    widths = [80, 40, 40, 80, 96, 96, 80]  # queries, keys, values, out, gate, up, down
    assert firsts == 3 * [*widths, *widths, 61]
