"""What is measured, at which sizes, on which sides. A side is a driver in an environment with settings: Tether as it is shipped, and a
peer in every setting that someone who knows it would try; the best of those counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

__all__ = ["FULL", "QUICK", "WORKLOADS", "Sizes", "Variant", "Workload"]

Settings = Mapping[str, Any]

# An allocator that keeps what it has and takes huge pages: less time in page faults. glibc and torch read these.
ALLOCATOR: Mapping[str, str] = MappingProxyType(
    {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**26)}
)


# Intel's OpenMP in place of GNU's, as guides to training on processors advise. BENCH is the folder of all environments.
OPENMP: Mapping[str, str] = MappingProxyType({"LD_PRELOAD": "BENCH/trl/lib/libiomp5.so", "KMP_BLOCKTIME": "1"})


@dataclass(frozen=True)
class Sizes:
    """Counts of one measurement. ``prompt_tokens`` with the chat template; a pair has ``pair_tokens`` on each side, its prompt included."""

    prompts: int = 8
    samples: int = 8
    prompt_tokens: int = 85
    response_tokens: int = 128
    pairs: int = 16
    pair_tokens: int = 256


FULL = Sizes()
QUICK = Sizes(prompts=2, samples=2, prompt_tokens=50, response_tokens=8, pairs=2, pair_tokens=64)


@dataclass(frozen=True)
class Variant:
    """One side. ``variables``: of its process, with BENCH for the folder of all environments. ``numerics``: "same" where weights,
    gradients and optimiser are float32 and products bfloat16, as ours; another word for other peers."""

    name: str
    environment: str
    driver: str
    settings: Settings = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    numerics: str = "same"
    default: bool = True

    @property
    def ours(self) -> bool:
        """Tether's side."""
        return self.environment == "tether"


@dataclass(frozen=True)
class Workload:
    """``phases``: of the total that is compared, all where empty. ``lengths``: how answers end. ``goals``: ratio wanted, by numerics.
    ``sizes`` and ``trial``: what is other than usual in a measurement, and besides in a trial of a peer's setting."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    tokens: str = "response"
    phases: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ("forced",)
    goals: Mapping[str, float] = field(default_factory=dict)
    memory_goal: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    trial: Mapping[str, int] = field(default_factory=dict)

    def sized(self, sizes: Sizes, *, trial: bool = False) -> Sizes:
        """The sizes of this workload; quick ones stay as they are."""
        return sizes if sizes == QUICK else replace(sizes, **{**self.sizes, **(self.trial if trial else {})})

    def choose(self, names: Sequence[str]) -> tuple[Variant, ...]:
        """The variants of those names (other names are not this workload's), and ours as shipped where none of them is ours; without names
        those that are run by default."""
        chosen = tuple(variant for variant in self.variants if (variant.name in names if names else variant.default))
        return chosen if any(variant.ours for variant in chosen) else (self.variants[0], *chosen)


def _ours(driver: str, name: str = "tether", default: bool = True, variables: Settings | None = None, **settings: Any) -> Variant:
    return Variant(name, "tether", driver, settings, variables or {}, default=default)


def _peer(
    environment: str,
    driver: str,
    name: str,
    weights: str,
    *,
    autocast: bool,
    rows: int = 0,
    tuned: bool = True,
    openmp: bool = False,
    default: bool = True,
    **more: Any,
) -> Variant:
    settings = {"weights": weights, "autocast": autocast, **({"rows_per_pass": rows} if rows else {}), **more}
    numerics = "same" if weights == "float32" and autocast else "other"
    variables = {**(ALLOCATOR if tuned else {}), **(OPENMP if openmp else {})}
    return Variant(name, environment, driver, settings, variables, numerics, default)


def _trl(
    driver: str, rows: Sequence[int], environment: str = "trl", *, system: bool = False, bf16: bool = True, **more: Any
) -> tuple[Variant, ...]:
    """The settings of a trainer: rows a pass, weights in float32 or bfloat16, autocast, attention, allocator, OpenMP, compiler.

    ``system``: allocator and OpenMP are tried here (elsewhere by name alone: they are the machine's, and two workloads settle them);
    ``bf16``: so are bfloat16 weights.
    """
    middle = rows[len(rows) // 2]

    def one(name: str, weights: str, *, autocast: bool, rows: int = middle, **kept: Any) -> Variant:
        return _peer(environment, driver, f"trl {name}", weights, autocast=autocast, rows=rows, **{**more, **kept})

    return (
        *(one(f"autocast, {n} rows", "float32", autocast=True, rows=n) for n in rows),
        one(f"autocast, {middle} rows, eager attention", "float32", autocast=True, attention="eager"),
        one(f"autocast, {middle} rows, plain allocator", "float32", autocast=True, tuned=False, default=system),
        one(f"autocast, {middle} rows, Intel OpenMP", "float32", autocast=True, openmp=True, default=system),
        one(f"autocast, {middle} rows, compiled", "float32", autocast=True, compile=True, default=False),
        *(one(f"bf16 weights, {n} rows", "bfloat16", autocast=False, rows=n, default=bf16) for n in rows),
        one(f"bf16 weights, {middle} rows, eager attention", "bfloat16", autocast=False, attention="eager", default=bf16),
        one(f"bf16 weights, {middle} rows, Intel OpenMP", "bfloat16", autocast=False, openmp=True, default=bf16 and system),
        one(f"bf16 weights and autocast, {middle} rows", "bfloat16", autocast=True, default=False),
        one(f"fp32, {middle} rows", "float32", autocast=False, default=False),
    )


def _hf(name: str, weights: str, *, autocast: bool = False, **more: Any) -> Variant:
    return _peer("trl", "hf_generate", f"transformers {name}", weights, autocast=autocast, **more)


def _vllm(name: str, default: bool = True, variables: Settings | None = None, **settings: Any) -> Variant:
    ready = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(variables or {})}
    return Variant(f"vllm {name}", "vllm", "vllm_generate", {"weights": "bfloat16", **settings}, ready, "vllm", default)


_ONLINE = ("forced", "natural")
_FEW: Mapping[str, int] = MappingProxyType({"prompts": 2, "response_tokens": 64})
_GRPO = _trl("trl_grpo", (16, 8), system=True)
_UPDATE = _trl("trl_grpo", (4, 8, 16))
_PAIRS = _trl("trl_offline", (2, 4, 8))
_SEQUENCES = _trl("trl_offline", (4, 8, 16), system=True)


def _our_variants(driver: str) -> tuple[Variant, ...]:
    """Tether as shipped, and with what the peers are given; only the first is run unless the others are named."""
    return (
        _ours(driver),
        _ours(driver, "tether, tuned allocator", default=False, variables=ALLOCATOR),
        _ours(driver, "tether, tuned allocator, Intel OpenMP", default=False, variables={**ALLOCATOR, **OPENMP}),
    )


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "grpo",
            "GRPO step: 8 prompts x 8 answers x 128 tokens, tether of .05, one optimiser step",
            (
                *_our_variants("tether_online"),
                *_GRPO,
                _peer(
                    "trl",
                    "trl_grpo",
                    "trl bf16 weights, 8 rows, static cache",
                    "bfloat16",
                    autocast=False,
                    rows=8,
                    cache="static",
                    default=False,
                ),
            ),
            lengths=_ONLINE,
            goals={"same": 6, "other": 5},
            memory_goal=0.5,
            trial=_FEW,
        ),
        Workload(
            "generate",
            "Generation alone: 8 prompts x 8 answers x 128 tokens",
            (
                *_our_variants("tether_generate"),
                _hf("bf16", "bfloat16"),
                _hf("bf16, plain allocator", "bfloat16", tuned=False),
                _hf("bf16, eager attention", "bfloat16", attention="eager"),
                _hf("bf16, static cache", "bfloat16", cache="static"),
                _hf("bf16, Intel OpenMP", "bfloat16", openmp=True),
                _hf("bf16, static cache, compiled", "bfloat16", cache="static", compile=True, default=False),
                _hf("fp32 and autocast", "float32", autocast=True, default=False),
                _vllm("bf16"),
                _vllm("bf16, Intel OpenMP", variables={"LD_PRELOAD": "BENCH/vllm/lib/libiomp5.so"}),
                _vllm("bf16, eager", eager=True, default=False),
                _vllm("bf16, engine in its own process", default=False, variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
            ),
            lengths=_ONLINE,
            goals={"other": 4, "vllm": 2},
            phases=("generate",),
            trial=_FEW,
        ),
        Workload(
            "update",
            "Update alone on the answers of a GRPO step that are given: forward, backward, optimiser",
            (*_our_variants("tether_update"), *_UPDATE),
            phases=("update", "optimiser"),
            goals={"same": 6, "other": 6},
            trial=_FEW,
        ),
        Workload(
            "reference",
            "Reference pass alone, on the same answers",
            (*_our_variants("tether_update"), *_UPDATE),
            phases=("reference",),
            goals={"same": 5, "other": 5},
            trial=_FEW,
        ),
        Workload(
            "ppo",
            "PPO step: 64 prompts x 1 answer x 128 tokens, reward model, one epoch, one optimiser step",
            (
                *_our_variants("tether_online"),
                _ours("tether_online", "tether, separate critic", default=False, critic="separate"),
                *_trl("trl_ppo", (4, 8, 16), environment="trl-ppo", bf16=False, rollout_rows=32),
            ),
            sizes={"prompts": 64, "samples": 1},
            goals={"same": 6, "other": 6},
            trial={"prompts": 16, "response_tokens": 64},
        ),
        *(
            Workload(
                name,
                f"{title}: 16 pairs x 2 x 256 tokens a step",
                (*_our_variants("tether_offline"), *peers),
                tokens="all",
                goals={"same": 3, "other": 3},
                trial={"pairs": 8},
            )
            for name, title, peers in (
                ("reward-model", "Reward model", _PAIRS),
                ("dpo", "DPO with its reference pass", _PAIRS),
                ("sft", "SFT", _SEQUENCES),
            )
        ),
    )
}
"""By name. Rows a pass count pairs for the reward model and DPO."""
