"""Sections that stages share: the model, data, optimiser, machine and sampling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tether.config.base import Params, Section

__all__ = [
    "CheckpointConfig", "ComputeConfig", "DataSource", "JudgedSource", "JudgementsConfig", "LoRAConfig", "ModelConfig", "OptimConfig",
    "RewardPartConfig", "SamplingConfig",
]  # fmt: skip

_Decay = Annotated[float, Field(ge=0, lt=1)]


class LoRAConfig(Section):
    """Low-rank adapters instead of full fine-tuning; the reference is then the same model with the adapter off."""

    rank: int = Field(default=16, ge=1)
    """Rank of the update of each adapted matrix."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale numerator: the update is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter."""


class ModelConfig(Section):
    """The model that every stage starts from."""

    path: str = "smollm2"
    """A local folder, a hub id, `smollm2` (after `tether fetch smollm2`) or `tiny` (made on the spot, for trying things)."""
    lora: LoRAConfig | None = None
    """Adapters for the RL stage; absent means full fine-tuning."""
    local_files_only: bool = True
    """True never goes to the network; set false to let Hugging Face download a hub id."""
    trust_remote_code: bool = False
    """Runs Python code that ships inside a model folder. Dangerous; written to the log when true."""


class DataSource(Section):
    """Where rows come from."""

    path: str
    """A .jsonl or .parquet file, a `datasets` folder, a hub id, or `tether:NAME` for data bundled with Tether."""
    split: str = "train"
    """Split of a `datasets` folder or hub id; without effect on a single file."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many rows."""


class JudgementsConfig(Section):
    """How the judgements of a database become comparisons; see docs/collect.md."""

    ties: Literal["leave_out", "both_orders"] = "leave_out"
    """A pair without a majority: no row, or two rows, one each way."""
    both_bad: Literal["leave_out", "as_tie"] = "leave_out"
    """A vote that both are bad counts as a tie, or more than half such votes leave the pair out."""
    margin: Literal["none", "strength"] = "none"
    """Margin 0, or the mean of the votes' strengths: `slight`, `much`, minus them for votes against."""
    slight: float = Field(default=1.0, ge=0)
    """Margin of a slight preference, in score units; also of one whose strength nobody was asked."""
    much: float = Field(default=2.0, ge=0)
    """Margin of a strong preference, in score units."""
    min_agreement: float = Field(default=0.0, ge=0, le=1)
    """Pairs with a smaller share of votes for the chosen answer are left out."""
    without: tuple[str, ...] = ()
    """Annotators, by id or name, whose word does not count."""
    labels: Literal["majority", "share"] = "majority"
    """Of a reward model: the chosen answer is better, or it is with the probability of its share of votes (ties count half)."""


class JudgedSource(DataSource):
    """Where rows with preferences come from: as in other sources, or a database of judgements."""

    path: str
    """As in other sources; also a database of `tether collect`: a .db file or a postgresql:// URL (without a password)."""
    split: str = "train"
    """Split of a `datasets` folder or hub id; of a database of judgements `train`, `held_out` or `all`."""
    judgements: JudgementsConfig | None = None
    """The rule for a database of judgements; absent means its defaults."""


class OptimConfig(Section):
    """AdamW, its learning-rate schedule and the gradient clip."""

    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate, per optimiser step."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Decay of the first and second gradient moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment (PyTorch form)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay on matrices; never on biases, norms and heads."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warmup, down to 0 at the last step for linear and cosine."""
    states: Literal["float32", "bfloat16", "int8"] = "float32"
    """Form in which AdamW keeps its two moments between steps: 8, 4 or about 2 bytes a weight (`int8`: embeddings and small tensors stay float32). Weights, gradients and arithmetic are float32 in all three; see docs/memory.md."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global gradient norm above which the gradient is scaled down."""
    max_skipped_steps: int = Field(default=10, ge=1)
    """Optimiser steps in a row that may be skipped because a number in them is not finite; the run stops at this one and keeps the batch."""


class ComputeConfig(Section):
    """Precision, memory and threads."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of matrix products; weights, gradients, reductions and log-probabilities stay float32. `auto`: bfloat16 where the processor
    multiplies it in hardware, else float32."""
    token_budget: int = Field(default=2048, ge=16)
    """Most tokens (rows x longest row) in one forward and backward pass; more are accumulated. Changes memory, never the result."""
    activation_checkpointing: Literal["auto", True, False] = "auto"
    """Recompute layer activations in the backward pass: less memory, about a third more time, the same result. `auto`: from the moment when a single row (or pair) does not fit without."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; absent means all cores that this process may use."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`cpu`, `cuda`, or `auto`: cuda when present."""


class CheckpointConfig(Section):
    """What a run that is interrupted can go on from; see docs/resume.md."""

    every: int = Field(default=10, ge=0)
    """Steps between checkpoints of a stage; 0 saves only when a signal asks the run to stop."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints of a stage that stay; all go when the stage is finished."""
    asynchronous: bool = True
    """Write in the background while the next step runs; takes memory for one copy of what is saved."""
    on_failure: Literal["stop", "continue"] = "stop"
    """What follows a save that failed (full disk, quota, broken disk): `stop` ends the run with status 1, `continue` warns and trains on.
    Checkpoints that were written before stay in either case."""


class SamplingConfig(Section):
    """How answers are drawn; stored with every rollout as its sampling contract."""

    max_new_tokens: int = Field(default=64, ge=1)
    """Token budget of an answer; one that reaches it without an end token counts as truncated."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits, in the sampler and in the trainer alike."""
    max_rows: int = Field(default=64, ge=1)
    """Answers generated side by side. Changes speed and memory, not randomness."""


class RewardPartConfig(Section):
    """One weighted part of the reward."""

    kind: Literal["learned", "linear", "exact", "format", "length", "overlong"]
    """`learned`: a reward model; `linear`: one of named features; `exact`: equality with an answer column; `format`: a pattern; `length`: a band; `overlong`: DAPO eq. 13."""
    weight: float = 1.0
    """Factor of this part in the sum."""
    params: Params = Field(default_factory=dict)
    """Settings of the part, e.g. `column` and `marker` of `exact`; `path` of `learned` (absent: the model of the reward_model stage)."""
