"""Which of a peer's settings are tried: from the fastest so far, one thing changed at a time, so that what helps is combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.peers.workloads import MACHINE, Variant

__all__ = ["search"]


def search(peers: Sequence[Variant], measure: Callable[[Variant], float]) -> None:
    """Calls ``measure`` (seconds, infinite for a failure) once for every setting that is tried.

    Of each precision with two variants or more: those without a place, each; those with one along every axis of their places in turn and
    once more along the first, beginning at the first variant. A later precision begins at the place that was fastest so far and leaves the
    machine's axis as it is there.
    """
    place: dict[str, object] = {}
    for numerics in dict.fromkeys(variant.numerics for variant in peers):
        rivals = [variant for variant in peers if variant.numerics == numerics]
        if len(rivals) < 2:
            continue
        seconds: dict[str, float] = {}

        def fastest(variants: Sequence[Variant], seconds: dict[str, float] = seconds) -> Variant:
            for variant in variants:
                if variant.name not in seconds:
                    seconds[variant.name] = measure(variant)
            return min(variants, key=lambda variant: seconds[variant.name])

        if alone := [variant for variant in rivals if not variant.place]:
            fastest(alone)
        if placed := [variant for variant in rivals if variant.place]:
            best = next((variant for variant in placed if variant.place == place), placed[0])
            axes = [name for name in best.place if not (place and name == MACHINE)]
            for axis in [*axes, *axes[:1]]:
                best = fastest([variant for variant in placed if _others(variant, axis) == _others(best, axis)])
            place = dict(best.place)


def _others(variant: Variant, axis: str) -> dict[str, object]:
    return {name: value for name, value in variant.place.items() if name != axis}
