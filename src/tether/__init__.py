"""Tether: reinforcement learning from human feedback, from comparisons to a tethered policy and a report.

Names are loaded when first used, so that ``import tether`` and the command line stay fast and free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tether.api import PolicyUpdater, grpo, ppo, rl, update_policy
    from tether.api_direct import dpo
    from tether.config import RunConfig, load_config
    from tether.models.policy import Policy
    from tether.models.reward import RewardModel
    from tether.types import Comparison, Completion, Demonstration, Message, Prompt, Sampling

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Completion",
    "Demonstration",
    "Message",
    "Policy",
    "PolicyUpdater",
    "Prompt",
    "RewardModel",
    "RunConfig",
    "Sampling",
    "__version__",
    "dpo",
    "grpo",
    "load_config",
    "ppo",
    "rl",
    "update_policy",
]

_HOMES = {
    "Comparison": "tether.types",
    "Completion": "tether.types",
    "Demonstration": "tether.types",
    "Message": "tether.types",
    "Policy": "tether.models.policy",
    "PolicyUpdater": "tether.api",
    "Prompt": "tether.types",
    "RewardModel": "tether.models.reward",
    "RunConfig": "tether.config",
    "Sampling": "tether.types",
    "dpo": "tether.api_direct",
    "grpo": "tether.api",
    "load_config": "tether.config",
    "ppo": "tether.api",
    "rl": "tether.api",
    "update_policy": "tether.api",
}


def __getattr__(name: str) -> Any:
    """The public name from its home, kept for the next time."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tether' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
