"""Direct preference optimisation on a file of judged answers: one loss over pairs (or single answers), no rollouts, no reward model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tether.config.base import Section
from tether.config.presets import DIRECT
from tether.config.settings import JudgedSource, OptimConfig

__all__ = ["DirectConfig"]

_Weight = Annotated[float, Field(gt=0)]
_SMOOTHED = {"cdpo", "robust"}


class DirectConfig(Section):
    """A direct preference loss on comparisons (DPO 2305.18290 and its relatives), tethered to the start by the loss itself."""

    presets: ClassVar = DIRECT

    kind: Literal["dpo", "cdpo", "robust", "ipo", "ipo_avg", "hinge", "kto", "orpo", "simpo"] = "dpo"
    """Names the loss, and with it the defaults: `dpo` softplus(-beta h), h the difference of summed log-ratios; `cdpo`, `robust` with noisy
    labels; `ipo` (h - 1/(2 beta))^2, `ipo_avg` on means per token; `hinge` max(0, 1 - beta h); `kto` single answers; `orpo`, `simpo` no reference."""
    data: JudgedSource
    """Comparisons: `prompt`, `chosen`, `rejected`; for `kto` also single answers: `prompt`, `completion`, `label` (true: liked)."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the tether, per nat: larger holds the policy nearer to the start. `simpo`: scale of the mean log-probabilities; `orpo`:
    weight of the odds-ratio term; neither has a reference to be held to."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a label is wrong (`cdpo`, `robust` only)."""
    gamma: float = Field(default=0.0, ge=0)
    """Margin that beta x (mean log-probability of chosen - of rejected) should exceed (`simpo` only)."""
    kto_weights: tuple[_Weight, _Weight] | None = None
    """Weights of liked and of disliked answers (`kto` only); absent: 1 and 1 if the counts allow, else the rarer side is raised until
    w_liked n_liked / (w_disliked n_disliked) lies in [1, 4/3] (KTO eq. 8)."""
    sft_coef: float = Field(default=0.0, ge=0)
    """Weight of the mean cross-entropy per token of the chosen answers, which keeps them likely (2404.19733); `orpo` has its own."""
    held_out_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the prompts kept for the accuracy before and after; all rows of a prompt are on one side of the split. 0 measures nothing."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training rows."""
    batch_size: int = Field(default=16, ge=1)
    """Pairs (`kto`: answers) per optimiser step."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus answer; pairs that no longer differ after cutting are dropped and counted."""
    optim: OptimConfig = OptimConfig(learning_rate=5e-6, warmup_steps=2, schedule="linear")
    """Optimiser of this stage."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> DirectConfig:
        problems = list(self._ignored())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _ignored(self) -> Iterator[str]:
        """Settings that this kind would not read, each with a remedy."""
        if self.label_smoothing and self.kind not in _SMOOTHED:
            yield f"label_smoothing has no effect with kind = {self.kind!r}; drop it or use 'cdpo' or 'robust'"
        if self.data.judgements is not None and self.data.judgements.labels != "majority":
            yield "data.judgements.labels has an effect on reward models alone; drop it here"
        if self.gamma and self.kind != "simpo":
            yield f"gamma has no effect with kind = {self.kind!r}; drop it or use 'simpo'"
        if self.kto_weights is not None and self.kind != "kto":
            yield f"kto_weights has no effect with kind = {self.kind!r}; drop it or use 'kto'"
        if self.sft_coef and self.kind == "orpo":
            yield "sft_coef with kind = 'orpo': its loss holds that term already, with weight 1; drop it and set beta against it"
        if self.sft_coef and self.kind == "kto":
            yield "sft_coef has no effect with kind = 'kto', whose answers come without a better one; drop it or use a kind for pairs"
        if self.batch_size < 2 and self.kind == "kto":
            yield "batch_size = 1 with kind = 'kto': its reference point is a mean over a batch; use 2 or more"
