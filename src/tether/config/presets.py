"""The algorithms by name: which parts each is made of. A preset is a starting point; every part can be replaced in the file.

Formulas and sources: docs/algorithms/NAME.md. Values are those of the papers, ours where a paper leaves them open (said there).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["ACTOR_CRITIC", "CRITIC_FREE", "DIRECT", "DIRECT_TITLES", "TITLES"]

_NO_TETHER = {"where": "loss", "estimator": "k3_corrected", "beta": 0.0}
_IN_REWARD = {"where": "reward", "estimator": "k1"}
_UNCLIPPED = {"surrogate": "ppo_clip", "eps_low": None, "eps_high": None}


def _frozen(table: dict[str, dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType({name: MappingProxyType(parts) for name, parts in table.items()})


ACTOR_CRITIC = _frozen(
    {
        "ppo": {},
        "vapo": {
            "critic": "separate",
            "eps_high": 0.28,
            "lam_alpha": 0.05,
            "critic_lam": 1.0,
            "value_pretrain_steps": 2,
            "value_clip": None,
            "kl": _NO_TETHER,
        },
    }
)
"""Algorithms with a value function, by kind: the settings that differ from ActorCriticConfig's own defaults (PPO)."""

CRITIC_FREE = _frozen(
    {
        "grpo": {},
        "dr_grpo": {"std": "none", "aggregation": "token_sum_norm", "kl": _NO_TETHER},
        "dapo": {
            "eps_high": 0.28,
            "aggregation": "token_mean",
            "kl": _NO_TETHER,
            "dynamic_sampling": {"max_batches": 3},
            "overlong_share": 0.2,
        },
        "rloo": {"advantage": "rloo", "std": "none", **_UNCLIPPED, "aggregation": "seq_mean_token_sum", "kl": {**_IN_REWARD, "beta": 0.05}},
        "reinforce_pp": {
            "advantage": "reinforce_pp",
            "samples_per_prompt": 1,
            "aggregation": "token_mean",
            "kl": {**_IN_REWARD, "beta": 0.01},
        },
        "reinforce_pp_baseline": {
            "advantage": "reinforce_pp_baseline",
            "aggregation": "token_mean",
            "kl": {"where": "loss", "estimator": "k2", "beta": 0.01},
        },
        "remax": {
            "advantage": "remax",
            "samples_per_prompt": 1,
            **_UNCLIPPED,
            "aggregation": "seq_mean_token_sum",
            "kl": {**_IN_REWARD, "beta": 0.05},
        },
        "gspo": {"surrogate": "gspo", "eps_low": 3e-4, "eps_high": 4e-4, "kl": _NO_TETHER},
        "cispo": {"surrogate": "cispo", "eps_low": None, "eps_high": 0.28, "aggregation": "token_mean", "kl": _NO_TETHER},
        "gmpo": {"surrogate": "gmpo", "eps_low": 0.4, "eps_high": 0.4, "kl": _NO_TETHER},
        "opo": {"advantage": "opo", **_UNCLIPPED, "aggregation": "seq_mean_token_sum", "kl": _NO_TETHER},
        "gdpo": {"advantage": "gdpo"},
    }
)
"""Algorithms whose baseline comes from other answers, by kind: what differs from CriticFreeConfig's own defaults (GRPO)."""

DIRECT = _frozen(
    {
        "dpo": {},
        "cdpo": {"label_smoothing": 0.1},
        "robust": {"label_smoothing": 0.1},
        "ipo": {},
        "ipo_avg": {"beta": 1.0},
        "hinge": {},
        "kto": {},
        "orpo": {},
        "simpo": {"beta": 2.0, "gamma": 1.0},
    }
)
"""Direct preference losses by kind: what differs from DirectConfig's own defaults (DPO). `ipo_avg` aims at 1 / (2 beta) nats per TOKEN, so
its beta is of another size than that of `ipo`; gamma of `simpo` is half its beta, as in the paper."""

TITLES = MappingProxyType(
    {
        "ppo": ("PPO", "1707.06347"),
        "vapo": ("VAPO", "2504.05118"),
        "grpo": ("GRPO", "2402.03300"),
        "dr_grpo": ("Dr. GRPO", "2503.20783"),
        "dapo": ("DAPO", "2503.14476"),
        "rloo": ("RLOO", "2402.14740"),
        "reinforce_pp": ("REINFORCE++", "2501.03262"),
        "reinforce_pp_baseline": ("REINFORCE++ with baseline", "2501.03262"),
        "remax": ("ReMax", "2310.10505"),
        "gspo": ("GSPO", "2507.18071"),
        "cispo": ("CISPO", "2506.13585"),
        "gmpo": ("GMPO", "2507.20673"),
        "opo": ("OPO", "2505.23585"),
        "gdpo": ("GDPO", "2601.05242"),
        "online_dpo": ("Online DPO", "2402.04792"),
    }
)
"""Name in the literature and arXiv id of every online algorithm, by kind."""

DIRECT_TITLES = MappingProxyType(
    {
        "dpo": ("DPO", "2305.18290"),
        "cdpo": ("Conservative DPO", "2305.18290"),
        "robust": ("Robust DPO", "2403.00409"),
        "ipo": ("IPO", "2310.12036"),
        "ipo_avg": ("IPO on means per token", "2310.12036"),
        "hinge": ("SLiC hinge", "2305.10425"),
        "kto": ("KTO", "2402.01306"),
        "orpo": ("ORPO", "2403.07691"),
        "simpo": ("SimPO", "2405.14734"),
    }
)
"""Name in the literature and arXiv id of every direct preference loss, by kind. cDPO is a note by E. Mitchell (2023) on that paper."""
