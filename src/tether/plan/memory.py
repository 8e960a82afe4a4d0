"""The most memory that each stage of a run holds, in bytes, before it starts: docs/memory.md as arithmetic.

    peak = program + what stays + 1.35 x the largest phase       phases: draw answers, score them, update

What stays are weights, moments, reference, reward model, a sampler that does not rest during updates, and the copy that a checkpoint in
the background takes. An update adds gradients, casts of matrices, and what a pass of ``compute.token_budget`` tokens keeps. The sums are
those of the code as it is, tensor by tensor; 1.35 is for what the heap holds beyond them, whose blocks come in ever other sizes. A run
logs what it held beside this (``memory_peak``, ``memory_planned``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tether.config import (
    ActorCriticConfig,
    DirectConfig,
    LoRAConfig,
    OptimConfig,
    RewardModelConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
)
from tether.plan.model import Dims

__all__ = ["HEAD_CHUNK", "HEAD_KEPT", "HEAD_PIECE", "StagePlan", "plan_memory"]

PROGRAM = 600 * 2**20
"""Python, PyTorch, transformers and what training makes of them on the way, beside the tensors."""
ALLOCATOR = 1.35
"""What the heap holds at the peak, by what the largest phase asks for; measured up to 1.28 in bfloat16, 1.2 in float32 (docs/memory.md)."""
PROMPT_TOKENS = 256
"""Of the longest prompt, where no setting bounds it."""
HEAD_KEPT, HEAD_CHUNK, HEAD_PIECE = 2**27, 2**24 * 5 // 4, 2**20
"""``models.head``: bytes of logits that wait, most logits of a chunk, logits of a piece."""
ATTENTION_PIECE = 2**20
"""Scores of one piece of attention (``models.attention``), which is a sequence at least."""
_MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "int8": 2.0 + 8 / 256}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """``stays`` and ``phases``: bytes by what they are for. ``tokens``: of the largest pass. ``program``: bytes before a model is read."""

    stage: str
    stays: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]
    tokens: int
    program: int = PROGRAM

    @property
    def largest(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def peak_bytes(self) -> int:
        """The most at once."""
        return self.program + sum(self.stays.values()) + round(ALLOCATOR * sum(self.phases[self.largest].values()))

    def __str__(self) -> str:
        parts = sorted([*self.stays.items(), *self.phases[self.largest].items()], key=lambda one: -one[1])
        kept = self.peak_bytes - self.program - sum(size for _, size in parts)
        listed = [*parts, ("kept by the allocator", kept), ("program", self.program)]
        told = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in listed if size >= 2**20)
        return f"{self.stage}: at most about {self.peak_bytes / 2**20:,.0f} MiB ({self.largest}: {told})"


def plan_memory(
    config: RunConfig, dims: Dims, narrow: bool, dims_of: Callable[[str], Dims | None] = lambda path: None, program: int = PROGRAM
) -> list[StagePlan]:
    """One plan per stage that trains. ``narrow``: products are bfloat16. ``dims_of``: of another model that a setting names."""
    plans = []
    if config.sft:
        plans.append(_sft(config, config.sft, dims, narrow))
    if config.reward_model:
        own = (dims_of(config.reward_model.path) if config.reward_model.path else None) or dims
        plans.append(_reward_model(config, config.reward_model, own, narrow))
    plans += [_rl(f"rl.{name}", config, rl, dims, narrow) for name, rl in config.rl.items()]
    plans += [_direct(f"direct.{name}", config, direct, dims, narrow) for name, direct in config.direct.items()]
    return [replace(plan, program=program) for plan in plans]


def _sft(config: RunConfig, section: SFTConfig, dims: Dims, narrow: bool) -> StagePlan:
    tokens = _pass_tokens(config, section.max_length, section.batch_size)
    stays = _trained(config, dims, None, section.optim)
    return StagePlan("sft", stays, {"update": _update(config, dims, None, tokens, section.max_length, narrow)}, tokens)


def _reward_model(config: RunConfig, section: RewardModelConfig, dims: Dims, narrow: bool) -> StagePlan:
    tokens = _pass_tokens(config, 2 * section.max_length, section.batch_size)
    stays = _trained(config, dims, section.lora, section.optim)
    update = _update(config, dims, section.lora, tokens, section.max_length, narrow, head=False)
    return StagePlan("reward_model", stays, {"update": update}, tokens)


def _direct(stage: str, config: RunConfig, section: DirectConfig, dims: Dims, narrow: bool) -> StagePlan:
    lora = config.model.lora
    tokens = _pass_tokens(config, 2 * section.max_length, section.batch_size)
    stays = _trained(config, dims, lora, section.optim)
    return StagePlan(stage, stays, {"update": _update(config, dims, lora, tokens, section.max_length, narrow)}, tokens)


def _rl(stage: str, config: RunConfig, section: RolloutConfig, dims: Dims, narrow: bool) -> StagePlan:
    lora = config.model.lora
    answers = section.prompts_per_step * section.samples_per_prompt
    longest = (section.max_prompt_tokens or PROMPT_TOKENS) + section.sampling.max_new_tokens
    tokens = _pass_tokens(config, longest, answers)
    frozen = 2 * dims.matrices + 4 * dims.embedding + 2 * (0 if dims.tied else dims.embedding) if narrow else 4 * dims.parameters
    stays = _trained(config, dims, lora, section.optim)
    stays["reference"] = 0 if lora else frozen
    sampler = 2 * dims.parameters + (2 * dims.embedding if dims.tied else 0) if narrow else 0
    rests = not lora and not section.rollouts_ahead  # lets go of its copies while the policy is updated
    if sampler and not rests:
        stays["sampler"] = sampler
    if section.rollouts_ahead:
        stays["weights that draw"] = 4 * dims.adapter_weights(lora.rank, lora.targets) if lora else frozen
    learned = sum(part.kind == "learned" for part in section.rewards)
    if learned:
        stays["reward models"] = learned * 4 * dims.parameters
    update = _update(config, dims, lora, tokens, longest, narrow)
    if isinstance(section, ActorCriticConfig) and section.critic != "shared":
        stays["critic"] = round((4 + _MOMENTS[section.optim.states]) * dims.parameters)
        update["gradients of the critic"] = 4 * dims.parameters
        update["activations of the critic"] = update["activations"]
    rows = min(section.sampling.max_rows, answers)
    bytes_each = 2 if narrow else 4
    drawing = {
        "cache": dims.cached_numbers * bytes_each * rows * longest,
        "logits": rows * dims.vocabulary * (4 + bytes_each),
    }
    if sampler and rests:
        drawing["sampler"] = sampler
    scoring = {"casts of matrices": 2 * dims.matrices if narrow else 0, "a pass": tokens * (dims.hidden * 12 + dims.intermediate * 8)}
    phases = {"update": update, "draw": drawing} | ({"score": scoring} if learned else {})
    return StagePlan(stage, stays, phases, tokens)


def _pass_tokens(config: RunConfig, longest: int, units: int) -> int:
    """Of the largest pass: the budget, or one unit where that is longer; never more than a step has."""
    return min(max(config.compute.token_budget, longest), longest * units)


def _trained(config: RunConfig, dims: Dims, lora: LoRAConfig | None, optim: OptimConfig) -> dict[str, int]:
    """Weights, moments, and the copy of both that is written in the background."""
    trained = dims.adapter_weights(lora.rank, lora.targets) if lora else dims.parameters
    wide = 0 if lora else dims.embedding * (1 if dims.tied else 2)  # int8: embeddings stay float32
    moments = _MOMENTS[optim.states] * trained
    if optim.states == "int8":
        moments += (_MOMENTS["float32"] - _MOMENTS["int8"]) * wide
    saved = config.checkpoint.asynchronous and config.checkpoint.every > 0
    return {
        "weights": 4 * (dims.parameters + (trained if lora else 0)),
        "moments": round(moments),
        "checkpoint being written": round(4 * trained + moments) if saved else 0,
    }


def _update(
    config: RunConfig, dims: Dims, lora: LoRAConfig | None, tokens: int, longest: int, narrow: bool, *, head: bool = True
) -> dict[str, int]:
    """Forward and backward of one pass over ``tokens``, beside the gradients of those before it."""
    scores = max(ATTENTION_PIECE, dims.heads * longest**2)
    parts = {
        "gradients": 4 * (dims.adapter_weights(lora.rank, lora.targets) if lora else dims.parameters),
        "activations": _kept(dims, tokens, narrow, config.compute.activation_checkpointing is True, lora is not None),
        "backward of a layer": 3 * 4 * min(scores, dims.heads * tokens * longest) + 8 * dims.intermediate * tokens,
    }
    if narrow:
        parts["casts of matrices"] = 2 * dims.matrices
    if head:
        bytes_each = 2 if narrow else 4
        parts["head"] = (
            (2 * dims.embedding if narrow else 0)  # its matrix, cast
            + (0 if lora else 4 * dims.embedding)  # its gradient, before it is added to that of the embedding
            + (min(HEAD_KEPT, 2 * tokens * dims.vocabulary) if narrow else 0)
            + 2 * bytes_each * min(HEAD_CHUNK, tokens * dims.vocabulary)
            + 3 * 4 * HEAD_PIECE
        )
    return parts


def _kept(dims: Dims, tokens: int, narrow: bool, recomputed: bool, adapted: bool) -> int:
    """What the layers keep for the backward pass.

    Lean layers in bfloat16, bytes a token: two norms keep their input in float32 and give 2 bytes (12 h); attention keeps queries, what
    it mixed and that once more for the next matrix (6 H D), keys and values with those of the prompt before them (6 K D, half of it
    prompt); a gated unit keeps both inputs (4 m), and their product where the matrix after it is adapted (6 m). In float32 every number
    takes 4 bytes. Once for all layers: the rotations (8 D) and the states at either end with what the last norm keeps (8 h, in float32
    16 h). Other layers: 34 h in two bytes (Korthikanti et al. 2205.05198), 68 h in four. Packed tokens are filled up to a multiple of 16.
    """
    tokens += -tokens % 16
    attention, kv = dims.heads * dims.head_size, dims.kv_heads * dims.head_size
    if not dims.lean:
        layer = 34 * dims.hidden if narrow else 68 * dims.hidden
    elif narrow:
        layer = 12 * dims.hidden + 6 * attention + 6 * kv + (6 if adapted else 4) * dims.intermediate
    else:
        layer = 16 * dims.hidden + 12 * attention + 12 * kv + (12 if adapted else 8) * dims.intermediate
    if recomputed:
        return tokens * (4 * dims.hidden * dims.layers + layer)
    return tokens * (layer * dims.layers + 8 * dims.head_size + (8 if narrow else 16) * dims.hidden)
