"""The online algorithms as one table of their parts, read from the resolved configuration: what ``tether algorithms`` prints.

No torch here: a laptop that only configures can print it. To compose your own, start from the nearest ``kind`` and replace parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from tether.config import ActorCriticConfig, CriticFreeConfig, OnlineDPOConfig, PolicyGradientConfig, rl_kind
from tether.config.presets import TITLES

__all__ = ["PartsRow", "as_markdown", "as_text", "parts_table"]

_COMPOSE = (
    "kind names a start; every part can be replaced in the file, for instance:\n\n"
    "    [rl.mine]\n"
    '    kind = "grpo"\n'
    '    advantage = "rloo"\n'
    '    surrogate = "cispo"\n'
    '    aggregation = "token_mean"\n'
)


@dataclass(frozen=True)
class PartsRow:
    """One algorithm. ``surrogate`` includes its clip widths; ``extras``: what else the preset switches on."""

    kind: str
    title: str
    arxiv: str
    advantage: str
    surrogate: str
    normaliser: str
    kl: str
    extras: str


def parts_table() -> list[PartsRow]:
    """One row per kind, in the order of the presets."""
    return [_row(kind, title, arxiv) for kind, (title, arxiv) in TITLES.items()]


def as_text() -> str:
    """The table in aligned columns, and how to compose one's own."""
    rows = [_HEADER, *(_cells(row) for row in parts_table())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _COMPOSE])


def as_markdown(links: bool = True) -> str:
    """The table for a document; ``links`` leads each kind to its page."""
    rows = [[f"[{row.kind}]({row.kind}.md)" if links else row.kind, *_cells(row)[1:]] for row in parts_table()]
    lines = [_line(_HEADER), _line(["---"] * len(_HEADER)), *(_line([cell or " " for cell in row]) for row in rows)]
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------------------------

_HEADER = [field.name for field in fields(PartsRow)]


def _cells(row: PartsRow) -> list[str]:
    return list(astuple(row))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(kind: str, title: str, arxiv: str) -> PartsRow:
    config = rl_kind(kind).model_validate({"kind": kind, "prompts": {"path": "-"}, "rewards": [{"kind": "format"}]})
    if isinstance(config, OnlineDPOConfig):
        loss = f"{config.loss} loss of the pair"
        return PartsRow(kind, title, arxiv, "best against worst", loss, "pairs", f"loss beta {config.beta:g}", "")
    assert isinstance(config, PolicyGradientConfig)
    parts = (_advantage(config), _surrogate(config), config.aggregation, _kl(config), ", ".join(_extras(config)))
    return PartsRow(kind, title, arxiv, *parts)


def _advantage(config: PolicyGradientConfig) -> str:
    if isinstance(config, ActorCriticConfig):
        lam = f"{config.lam:g}" if config.lam_alpha is None else f"1-1/({config.lam_alpha:g} L)"
        return f"gae lam {lam}" + (", whitened" if config.whiten_advantages else "")
    assert isinstance(config, CriticFreeConfig)
    divided = config.advantage in {"group", "rloo", "group_batch_std", "gdpo"}
    return config.advantage + (f" std {config.std}" if divided else "")


def _surrogate(config: PolicyGradientConfig) -> str:
    def width(value: float | None) -> str:
        return "off" if value is None else f"{value:g}"

    if config.eps_low is None and config.eps_high is None:
        return f"{config.surrogate} unclipped"
    return f"{config.surrogate} {width(config.eps_low)}/{width(config.eps_high)}"


def _is_remax(config: PolicyGradientConfig) -> bool:
    return isinstance(config, CriticFreeConfig) and config.advantage == "remax"


def _kl(config: PolicyGradientConfig) -> str:
    kl = config.kl
    return f"{kl.where} {kl.estimator} {kl.beta:g}" if kl.beta else "none"


def _extras(config: PolicyGradientConfig) -> Iterator[str]:
    if isinstance(config, ActorCriticConfig):
        yield f"critic {config.critic}"
        if config.critic_lam is not None:
            yield f"critic lam {config.critic_lam:g}"
        if config.value_clip is not None:
            yield f"value clip {config.value_clip:g}"
        if config.value_pretrain_steps:
            yield f"value pretraining {config.value_pretrain_steps}"
    else:
        yield f"G {config.samples_per_prompt}" + (" and a greedy answer" if _is_remax(config) else "")
    if config.dual_clip is not None:
        yield f"dual clip {config.dual_clip:g}"
    if config.dynamic_sampling is not None:
        yield f"dynamic sampling {config.dynamic_sampling.max_batches}"
    if config.overlong_share is not None:
        yield f"overlong {config.overlong_share:g}"
    if config.entropy_coef:
        yield f"entropy {config.entropy_coef:g}"
