"""Where a number comes from: weights, data, sampling, seed, code. Written beside every number of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tether import __version__
from tether.backends.compute import Compute
from tether.config import EvaluateConfig
from tether.models.policy import Policy
from tether.run.folder import source_sha256
from tether.types import Sampling

__all__ = ["Provenance", "provenance_of"]


@dataclass(frozen=True)
class Provenance:
    """Plain values; no path and no name of a user. ``data_sha256`` is of the whole file, of which ``num_prompts`` rows were asked."""

    weights_sha256: str
    data_sha256: str
    num_prompts: int
    samples_per_prompt: int
    sampling: Mapping[str, Any]
    score: str
    score_params: Mapping[str, Any]
    seeds: tuple[int, ...]
    device: str
    dtype: str
    tether: str
    source_sha256: str
    torch: str

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def provenance_of(
    policy: Policy, config: EvaluateConfig, compute: Compute, *, data_sha256: str, num_prompts: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """Of the numbers that ``policy`` gets under ``config``."""
    sampling = Sampling(config.sampling.max_new_tokens, config.sampling.temperature)
    return Provenance(
        weights_sha256=policy.weights_fingerprint(),
        data_sha256=data_sha256,
        num_prompts=num_prompts,
        samples_per_prompt=config.samples_per_prompt,
        sampling=asdict(sampling),
        score=config.score,
        score_params=dict(config.score_params),
        seeds=tuple(seeds),
        device=compute.device.type,
        dtype=str(compute.dtype).removeprefix("torch."),
        tether=__version__,
        source_sha256=source_sha256(),
        torch=torch.__version__,
    ).as_dict()
