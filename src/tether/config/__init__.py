"""The configuration of a run: frozen models, TOML or YAML in, JSON out, every problem reported at once.

A run is a list of optional stages; a stage runs if and only if its section is present::

    [model]  ->  [sft]  ->  [reward_model]  ->  [rl.NAME], [direct.NAME] (each from the same start)  ->  [evaluate]

The sentence under a field is its help text and its entry in docs/configuration.md. This package does not import torch.
"""

from tether.config.base import OFF, Section, is_switchable
from tether.config.checks import CheckLevelsConfig, ChecksConfig
from tether.config.direct import DirectConfig
from tether.config.load import explain, load_config, parse_config, parse_text, resolved_json, rl_kind
from tether.config.online import (
    ActorCriticConfig,
    AnyRLConfig,
    CriticFreeConfig,
    DynamicSamplingConfig,
    KLConfig,
    OnlineDPOConfig,
    PolicyGradientConfig,
    RolloutConfig,
    SamplerCorrectionConfig,
)
from tether.config.run import RunConfig
from tether.config.settings import (
    CheckpointConfig,
    ComputeConfig,
    DataSource,
    JudgedSource,
    JudgementsConfig,
    LoRAConfig,
    ModelConfig,
    OptimConfig,
    RewardPartConfig,
    SamplingConfig,
)
from tether.config.stages import EvaluateConfig, RewardModelConfig, SFTConfig

__all__ = [
    "OFF",
    "ActorCriticConfig",
    "AnyRLConfig",
    "CheckLevelsConfig",
    "CheckpointConfig",
    "ChecksConfig",
    "ComputeConfig",
    "CriticFreeConfig",
    "DataSource",
    "DirectConfig",
    "DynamicSamplingConfig",
    "EvaluateConfig",
    "JudgedSource",
    "JudgementsConfig",
    "KLConfig",
    "LoRAConfig",
    "ModelConfig",
    "OnlineDPOConfig",
    "OptimConfig",
    "PolicyGradientConfig",
    "RewardModelConfig",
    "RewardPartConfig",
    "RolloutConfig",
    "RunConfig",
    "SFTConfig",
    "SamplerCorrectionConfig",
    "SamplingConfig",
    "Section",
    "explain",
    "is_switchable",
    "load_config",
    "parse_config",
    "parse_text",
    "resolved_json",
    "rl_kind",
]
