"""What is measured, at which sizes, on which sides. A side is a driver in an environment with settings: Tether as it is shipped, and a
peer in every setting that someone who knows it would try; the best of those counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

__all__ = ["FULL", "MACHINE", "QUICK", "WORKLOADS", "Sizes", "Variant", "Workload"]

Settings = Mapping[str, Any]

# An allocator that keeps what it has and takes huge pages: less time in page faults. glibc and torch read these.
ALLOCATOR: Mapping[str, str] = MappingProxyType(
    {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**26)}
)


MACHINE = "OpenMP"
"""The axis of the settings that is the machine's and not the trainer's."""


def _openmp(environment: str) -> Settings:
    """Intel's OpenMP in place of GNU's, as guides to training on processors advise. BENCH is the folder of all environments."""
    return {"LD_PRELOAD": f"BENCH/{environment}/lib/libiomp5.so", "KMP_BLOCKTIME": "1"}


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
    gradients and optimiser are float32 and products as ours are on that machine; another word for other peers. ``default``: whether it is
    tried without being named, and ``products``: on which machines, those whose products are quickest in "bfloat16" or in "float32"; any
    where empty. ``place``: its value on each axis of settings that combine; empty for one that is tried by itself."""

    name: str
    environment: str
    driver: str
    settings: Settings = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    numerics: str = "same"
    default: bool = True
    products: str = ""
    place: Settings = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Tether's side."""
        return self.environment == "tether"

    def on(self, products: str) -> Variant:
        """On a machine whose products are ``products``, and so ours: a trainer's numerics are the same where its products are those."""
        if self.numerics not in ("same", "other") or "autocast" not in self.settings:
            return self
        same = self.settings["weights"] == "float32" and self.settings["autocast"] == (products == "bfloat16")
        return replace(self, numerics="same" if same else "other")


@dataclass(frozen=True)
class Workload:
    """``phases``: of the total that is compared, all where empty. ``lengths``: how answers end. ``goals``: ratio wanted, by numerics.
    ``sizes`` and ``trial``: what is other than usual in a measurement, and besides in a trial of a peer's setting. ``steps_of``: another
    workload whose steps have these phases too: trials, and rounds where the same sides are chosen, are those of that one."""

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
    steps_of: str = ""

    def sized(self, sizes: Sizes, *, trial: bool = False) -> Sizes:
        """The sizes of this workload; quick ones stay as they are."""
        return sizes if sizes == QUICK else replace(sizes, **{**self.sizes, **(self.trial if trial else {})})

    def choose(self, names: Sequence[str], products: str) -> tuple[Variant, ...]:
        """The variants of those names (other names are not this workload's), and ours as shipped where none of them is ours; without names
        those that are run by default on a machine whose products are quickest in ``products``."""
        usual = [variant for variant in self.variants if variant.default and variant.products in ("", products)]
        chosen = tuple(variant.on(products) for variant in (self.variants if names else usual) if not names or variant.name in names)
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
    products: str = "bfloat16",
    place: Settings | None = None,
    **more: Any,
) -> Variant:
    settings = {"weights": weights, "autocast": autocast, **({"rows_per_pass": rows} if rows else {}), **more}
    variables = {**(ALLOCATOR if tuned else {}), **(_openmp(environment) if openmp else {})}
    return Variant(name, environment, driver, settings, variables, "other", default, products, place or {}).on("bfloat16")


def _trl(driver: str, tried: Sequence[int], environment: str = "trl", *, rows: Sequence[int] = (), **more: Any) -> tuple[Variant, ...]:
    """The settings of a trainer. By default rows a pass (``tried``), attention and OpenMP in every combination, with float32 weights and
    autocast and with bfloat16 weights, or all in float32 where bfloat16 is no quicker; by name further ``rows``, the plain allocator, a
    compiled model, other precisions."""

    def one(name: str, weights: str, *, autocast: bool, rows: int = tried[0], **kept: Any) -> Variant:
        return _peer(environment, driver, f"trl {name}", weights, autocast=autocast, rows=rows, **{**more, **kept})

    def combined(name: str, weights: str, autocast: bool) -> tuple[Variant, ...]:
        return tuple(
            one(
                f"{name}, {n} rows{', eager attention' * eager}{', Intel OpenMP' * intel}",
                weights,
                autocast=autocast,
                rows=n,
                openmp=intel,
                default=n in tried,
                products="bfloat16" if autocast or weights == "bfloat16" else "float32",
                place={"rows": n, "attention": "eager" if eager else "sdpa", MACHINE: "Intel" if intel else "GNU"},
                **({"attention": "eager"} if eager else {}),
            )
            for n in (*tried, *rows)
            for eager in (False, True)
            for intel in (False, True)
        )

    return (
        *combined("autocast", "float32", True),
        *combined("bf16 weights", "bfloat16", False),
        *combined("fp32", "float32", False),
        one(f"autocast, {tried[0]} rows, plain allocator", "float32", autocast=True, tuned=False, default=False),
        one(f"autocast, {tried[0]} rows, compiled", "float32", autocast=True, compile=True, default=False),
        one(f"bf16 weights and autocast, {tried[0]} rows", "bfloat16", autocast=True, default=False),
    )


def _hf(name: str, weights: str, *, autocast: bool = False, **more: Any) -> Variant:
    return _peer("trl", "hf_generate", f"transformers {name}", weights, autocast=autocast, **{"products": weights, **more})


def _vllm(name: str, weights: str, default: bool = True, variables: Settings | None = None, **settings: Any) -> Variant:
    ready = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(variables or {})}
    return Variant(f"vllm {name}", "vllm", "vllm_generate", {"weights": weights, **settings}, ready, "vllm", default, weights)


_ONLINE = ("forced", "natural")
_FEW: Mapping[str, int] = MappingProxyType({"prompts": 2, "response_tokens": 64})
_ROWS = _trl("trl_grpo", (8, 16), rows=(4,))
_PAIRS = _trl("trl_offline", (4, 8), rows=(2,))
_SEQUENCES = _trl("trl_offline", (8, 16), rows=(4,))


def _our_variants(driver: str) -> tuple[Variant, ...]:
    """Tether as shipped, and with what the peers are given; only the first is run unless the others are named."""
    return (
        _ours(driver),
        _ours(driver, "tether, tuned allocator", default=False, variables=ALLOCATOR),
        _ours(driver, "tether, tuned allocator, Intel OpenMP", default=False, variables={**ALLOCATOR, **_openmp("trl")}),
    )


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "grpo",
            "GRPO step: 8 prompts x 8 answers x 128 tokens, tether of .05, one optimiser step",
            (
                *_our_variants("tether_online"),
                *_ROWS,
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
                *(
                    variant
                    for short, weights in (("bf16", "bfloat16"), ("fp32", "float32"))
                    for variant in (
                        _hf(short, weights),
                        _hf(f"{short}, plain allocator", weights, tuned=False),
                        _hf(f"{short}, eager attention", weights, attention="eager"),
                        _hf(f"{short}, static cache", weights, cache="static"),
                        _hf(f"{short}, Intel OpenMP", weights, openmp=True),
                    )
                ),
                _hf("bf16, static cache, compiled", "bfloat16", cache="static", compile=True, default=False),
                _hf("fp32 and autocast", "float32", autocast=True, default=False),
                *(
                    variant
                    for short, weights in (("bf16", "bfloat16"), ("fp32", "float32"))
                    for variant in (
                        _vllm(short, weights),
                        _vllm(f"{short}, Intel OpenMP", weights, variables={"LD_PRELOAD": "BENCH/vllm/lib/libiomp5.so"}),
                    )
                ),
                _vllm("bf16, eager", "bfloat16", eager=True, default=False),
                _vllm("bf16, engine in its own process", "bfloat16", False, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
            ),
            lengths=_ONLINE,
            goals={"same": 4, "other": 4, "vllm": 2},
            phases=("generate",),
            trial=_FEW,
        ),
        Workload(
            "update",
            "Update alone on the answers of a GRPO step that are given: forward, backward, optimiser",
            (*_our_variants("tether_update"), *_ROWS),
            phases=("update", "optimiser"),
            goals={"same": 6, "other": 6},
            trial=_FEW,
        ),
        Workload(
            "reference",
            "Reference pass alone, on the same answers",
            (*_our_variants("tether_update"), *_ROWS),
            phases=("reference",),
            goals={"same": 5, "other": 5},
            trial=_FEW,
            steps_of="update",
        ),
        Workload(
            "ppo",
            "PPO step: 64 prompts x 1 answer x 128 tokens, reward model, one epoch, one optimiser step",
            (
                *_our_variants("tether_online"),
                _ours("tether_online", "tether, separate critic", default=False, critic="separate"),
                *_trl("trl_ppo", (8, 16), environment="trl-ppo", rows=(4,), rollout_rows=32),
            ),
            sizes={"prompts": 64, "samples": 1},
            goals={"same": 6, "other": 6},
            trial={"prompts": 16, "response_tokens": 32},
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
