"""The online stages: rollouts, the tether, and an algorithm as a choice of parts.

    RolloutConfig                what any online stage has: prompts, rewards, sampling, passes, optimiser
      PolicyGradientConfig       + advantage x surrogate x place of the KL x normaliser x corrections
        ActorCriticConfig          advantages from a value function     (ppo, vapo)
        CriticFreeConfig           advantages from other answers        (grpo, rloo, dapo, ...)
      OnlineDPOConfig            + pairs of the policy's own answers, a direct preference loss

The first three of these are never built; a section past 15 fields says so here: an algorithm is read and compared as one flat table.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tether.config.base import OFF, Section, Switchable
from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE
from tether.config.settings import DataSource, OptimConfig, RewardPartConfig, SamplingConfig

__all__ = [
    "ActorCriticConfig",
    "AnyRLConfig",
    "CriticFreeConfig",
    "DynamicSamplingConfig",
    "KLConfig",
    "OnlineDPOConfig",
    "PolicyGradientConfig",
    "RolloutConfig",
    "SamplerCorrectionConfig",
]


class KLConfig(Section):
    """The tether: KL(policy || reference), in nats."""

    beta: float = Field(default=0.05, ge=0)
    """Strength of the tether, reward units per nat."""
    where: Literal["reward", "loss"] = "reward"
    """`reward`: -beta * k1 on every token's reward, detached; `loss`: + beta * estimator in the loss. One place, never both."""
    estimator: Literal["k1", "k2", "k3", "k3_corrected"] = "k1"
    """Per-token estimator. In the reward only k1 is unbiased in its gradient; in the loss use k2 or k3_corrected (k3 times the
    importance ratio). Plain k3 as a loss pulls along KL(reference || policy) and is accepted knowingly; k1 as a loss has zero mean gradient and is refused."""
    target: Annotated[float | None, Field(gt=0), *Switchable] = None
    """Adaptive controller: wanted mean over sequences of the summed k1 (nats per sequence); `off`: beta stays fixed."""
    horizon: int = Field(default=10_000, ge=1)
    """Sequences over which the adaptive controller reacts."""
    reference_pass: bool = True
    """Whether every round reads its answers by the reference too. `false` saves that pass where beta = 0, when only the log needs it; the KL
    is then measured at the looks of `checks` and in the evaluation alone."""

    @model_validator(mode="after")
    def _one_meaning(self) -> KLConfig:
        if self.where == "reward" and self.estimator != "k1":
            raise ValueError(f"estimator = {self.estimator!r} with where = 'reward': only k1 in the reward has the gradient "
                             "of KL(policy || reference); use estimator = 'k1', or where = 'loss'")
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError("estimator = 'k1' with where = 'loss': its expected gradient is zero, it would tether nothing; "
                             "use estimator = 'k2' or 'k3_corrected', or where = 'reward'")
        if self.target is not None and self.beta == 0:
            raise ValueError("target is set but beta = 0: a controller that multiplies 0 never moves; set beta > 0 or drop target")
        if not self.reference_pass and self.beta > 0:
            raise ValueError(f"reference_pass = false with beta = {self.beta:g}: the tether needs the log-probabilities of the reference; "
                             "set beta = 0, or leave the pass in")
        return self


class SamplerCorrectionConfig(Section):
    """Importance weights for a sampler whose log-probabilities differ from the trainer's (d = old - sampler, nats). They multiply the
    policy loss of a token, not its KL term: that has weights of its own where answers are drawn ahead (`rollouts_ahead`)."""

    mode: Literal["off", "token_truncate", "token_mask", "seq_truncate", "seq_mask", "seq_geo_filter_token_weight"] = "off"
    """`token_truncate`: exp d clipped to [low, high]; `token_mask`: exp d, 0 outside; `seq_truncate`: min(exp of the summed d, high);
    `seq_mask`: that sum's exp, 0 outside; `seq_geo_filter_token_weight`: rows whose mean d is inside keep exp d."""
    low: Annotated[float | None, Field(ge=0), *Switchable] = None
    """Lower bound of the weight; `off`: none."""
    high: Annotated[float | None, Field(gt=0), *Switchable] = 2.0
    """Upper bound of the weight; `off`: none."""
    sequence_mask_delta: Annotated[float | None, Field(ge=0), *Switchable] = None
    """Rows with a negative advantage whose mean (sampler - current) log-probability exceeds this many nats per token leave the policy
    loss (DeepSeek-V3.2); `off`: none."""


def _named_mode(value: Any) -> Any:
    """The one word "off" stands for the section with that mode."""
    return {"mode": OFF} if value == OFF else value


class DynamicSamplingConfig(Section):
    """DAPO's filter: groups whose rewards are all equal are replaced by groups of further prompts."""

    max_batches: int = Field(default=3, ge=1)
    """Batches of `prompts_per_step` prompts that one step may ask, the first included; then it trains on what it has."""


class RolloutConfig(Section):
    """What every online stage has."""

    prompts: DataSource
    """Prompts of the rollouts; any other columns go to the reward parts."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Token limit of a rendered prompt; absent means what the model takes."""
    long_prompts: Literal["error", "filter"] = "error"
    """What happens to prompts over max_prompt_tokens: stop and name the rows, or leave them out and count them."""
    rewards: tuple[RewardPartConfig, ...] = Field(min_length=1)
    """Weighted parts of the reward; each is logged under its own name."""
    steps: int = Field(default=20, ge=1)
    """Rollout-and-update rounds."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Prompts asked in one round."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers sampled per prompt (G)."""
    sampling: SamplingConfig = SamplingConfig()
    """How answers are drawn."""
    epochs: int = Field(default=1, ge=1)
    """Passes over one round's rollouts."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per pass; rows are permuted afresh each pass."""
    rollouts_ahead: int = Field(default=0, ge=0, le=1)
    """1: the answers of a round are drawn while the round before it is learned from, hence always by the weights of one round earlier, and
    policy-gradient kinds need a `sampler_correction`; 0: by the weights that are then updated."""
    optim: OptimConfig = OptimConfig()
    """Optimiser of the policy (and of a shared value head)."""


class PolicyGradientConfig(RolloutConfig):
    """What the algorithms over one policy-gradient function share."""

    kl: KLConfig = KLConfig()
    """The tether to the frozen reference."""
    surrogate: Literal["ppo_clip", "gspo", "gspo_token", "cispo", "gmpo"] = "ppo_clip"
    """What is minimised per token: `ppo_clip` -min(rA, clip(r)A); `gspo` the same with one ratio per answer, `gspo_token` its token form;
    `cispo` -clip(r) A log pi with the weight detached; `gmpo` the geometric mean of ratios clipped in log space."""
    eps_low: Annotated[float | None, Field(gt=0), *Switchable] = 0.2
    """Lower clip: ratios below 1 - eps_low get no gradient where the advantage is negative (gmpo: log-ratios below -eps_low); `off`: none."""
    eps_high: Annotated[float | None, Field(gt=0), *Switchable] = 0.2
    """Upper clip: ratios above 1 + eps_high get no gradient where the advantage is positive (cispo: weights above it are cut to it; gmpo:
    log-ratios above eps_high); `off`: none."""
    dual_clip: Annotated[float | None, Field(gt=1), *Switchable] = None
    """For negative advantages no gradient above this ratio (1912.09729); `off`: none. Only with `ppo_clip`."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"] = "token_mean"
    """How token losses become one number; the denominator is counted once over the whole optimiser step. `token_sum_norm` divides by
    rows x max_new_tokens."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the mean token entropy (nats), added to what is maximised."""
    target_kl: Annotated[float | None, Field(gt=0), *Switchable] = None
    """Stop the passes of a round before a minibatch whose KL(old || new), k3, exceeds 1.5 times this (nats per token)."""
    sampler_correction: Annotated[SamplerCorrectionConfig, BeforeValidator(_named_mode)] = SamplerCorrectionConfig()
    """Importance weights against a sampler that is not quite the trainer; `off`: none."""
    dynamic_sampling: Annotated[DynamicSamplingConfig | None, *Switchable] = None
    """Replace groups without spread in their rewards; `off`: keep them (their advantage is 0)."""
    overlong_share: Annotated[float | None, Field(gt=0, lt=1), *Switchable] = None
    """Soft penalty of overlong answers (DAPO eq. 13) over the last share of max_new_tokens, from 0 down to -1; `off`: none."""

    @model_validator(mode="after")
    def _parts_fit(self) -> PolicyGradientConfig:
        if self.dual_clip is not None and self.surrogate != "ppo_clip":
            raise ValueError(f"dual_clip has no meaning with surrogate = {self.surrogate!r}; drop it or use 'ppo_clip'")
        if self.surrogate in {"gspo", "gspo_token", "cispo", "ppo_clip"} and self.eps_low is not None and self.eps_low >= 1:
            raise ValueError(f"eps_low = {self.eps_low}: a ratio is positive, so a lower clip lies between 0 and 1")
        if self.dynamic_sampling is not None and self.samples_per_prompt < 2:
            raise ValueError("dynamic_sampling needs samples_per_prompt of 2 or more: one answer has no spread")
        if self.overlong_share is not None and any(part.kind == "overlong" for part in self.rewards):
            raise ValueError("overlong_share and a reward part of kind 'overlong' would punish the same length twice; drop one "
                             "(overlong_share = \"off\")")  # fmt: skip
        if self.rollouts_ahead and self.sampler_correction.mode == OFF:
            raise ValueError("rollouts_ahead = 1 with sampler_correction.mode = 'off': the answers come from weights that are one round older "
                             "than those of the update, and the gradient would be that of neither policy; set sampler_correction = "
                             "{mode = \"token_truncate\", high = 2.0} (docs/asynchronous.md compares the modes), or rollouts_ahead = 0")  # fmt: skip
        return self


class ActorCriticConfig(PolicyGradientConfig):
    """Advantages from a learned value function: PPO (Schulman et al. 2017, 1707.06347) and VAPO (2504.05118)."""

    presets: ClassVar = ACTOR_CRITIC

    kind: Literal["ppo", "vapo"] = "ppo"
    """Names the algorithm, and with it the defaults of its parts."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE lambda: 0 trusts the value function, 1 the observed return."""
    lam_alpha: Annotated[float | None, Field(gt=0), *Switchable] = None
    """Length-adaptive lambda of the advantages, 1 - 1 / (lam_alpha x length) (VAPO), in place of lam; `off`: lam for all lengths."""
    critic_lam: Annotated[float | None, Field(ge=0, le=1), *Switchable] = None
    """GAE lambda of the returns that the value function learns (VAPO: 1); `off`: that of the advantages."""
    critic: Literal["shared", "separate", "reward_model"] = "shared"
    """`shared`: a zero-initialised head on the policy's trunk; `separate`: an own trunk from the policy's start with a zero head;
    `reward_model`: an own trunk and head from the reward_model stage."""
    value_coef: float = Field(default=0.1, ge=0)
    """Weight of the value loss beside the policy loss (shared trunk) or of its own (separate critic)."""
    value_clip: Annotated[float | None, Field(gt=0), *Switchable] = 0.2
    """Values may move this far from the old ones before their loss stops pulling; `off`: no clip."""
    value_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of a separate critic or of the shared head; absent means that of the policy."""
    value_pretrain_steps: int = Field(default=0, ge=0)
    """First rounds in which only the value function learns; needs a critic of its own."""
    whiten_advantages: bool = True
    """Advantages get mean 0 and variance 1 over the live tokens of the round."""

    @model_validator(mode="after")
    def _one_scale(self) -> ActorCriticConfig:
        if self.aggregation == "token_sum_norm" and self.whiten_advantages:
            raise ValueError("aggregation = 'token_sum_norm' with whiten_advantages = true: whitening already fixes the scale; choose one")
        if self.surrogate in {"gspo", "gmpo"}:
            raise ValueError(f"surrogate = {self.surrogate!r} takes one advantage per answer, and a value function gives one per token; "
                             "use 'gspo_token' or 'ppo_clip'")  # fmt: skip
        if self.value_pretrain_steps and self.critic == "shared":
            raise ValueError("value_pretrain_steps needs critic = 'separate' or 'reward_model': a shared trunk would move the policy")
        if self.value_pretrain_steps >= self.steps:
            raise ValueError(f"value_pretrain_steps = {self.value_pretrain_steps} of steps = {self.steps}: the policy would never be trained; "
                             "lower it or raise steps")  # fmt: skip
        return self


_ALONE = ("reinforce_pp", "remax")  # estimators that need no second answer to the prompt
_DIVIDED = ("group", "group_batch_std", "rloo", "gdpo")  # estimators that read std and std_eps


class CriticFreeConfig(PolicyGradientConfig):
    """Advantages from other answers instead of a value function: GRPO (DeepSeekMath, 2402.03300) and its relatives."""

    presets: ClassVar = CRITIC_FREE

    kind: Literal[
        "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gspo", "cispo", "gmpo", "opo", "gdpo"
    ] = "grpo"
    """Names the algorithm, and with it the defaults of its parts."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Answers sampled per prompt (G); a group of one has no baseline, so 2 or more but for `reinforce_pp` and `remax`."""
    advantage: Literal[
        "group", "group_batch_std", "rloo", "opo", "reinforce_pp", "reinforce_pp_baseline", "remax", "gdpo"
    ] = "group"
    """Estimator: `group` (r - mean) / std of the prompt's answers; `group_batch_std` the same over the std of the round; `rloo` minus the
    mean of the others; `opo` minus the length-weighted mean; `reinforce_pp` reward-to-go whitened over the round; `reinforce_pp_baseline`
    r - mean, whitened over tokens; `remax` minus the reward of the greedy answer; `gdpo` each reward part standardised before the sum."""
    std: Literal["population", "sample", "none"] = "population"
    """Standard deviation that advantages are divided by (`group`, `rloo`, `group_batch_std`, `gdpo`); `none` only centres."""
    std_eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"] = "seq_mean_token_mean"
    """How token losses become one number; the denominator is counted once over the whole optimiser step. `token_sum_norm` divides by
    rows x max_new_tokens."""
    kl: KLConfig = KLConfig(where="loss", estimator="k3_corrected", beta=0.04)
    """The tether to the frozen reference."""

    @model_validator(mode="after")
    def _estimator_fits(self) -> CriticFreeConfig:
        if self.samples_per_prompt < 2 and self.advantage not in _ALONE:
            raise ValueError(f"advantage = {self.advantage!r} compares answers to one prompt: samples_per_prompt must be 2 or more")
        if self.surrogate in {"gspo", "gmpo"} and self.advantage in {"reinforce_pp"}:
            raise ValueError(f"surrogate = {self.surrogate!r} takes one advantage per answer, 'reinforce_pp' gives one per token; "
                             "use 'gspo_token' or 'ppo_clip'")  # fmt: skip
        if self.advantage == "gdpo" and self.kl.where == "reward":
            raise ValueError("advantage = 'gdpo' standardises every reward part by itself, which leaves no place for the KL in the reward; "
                             "use kl.where = 'loss'")  # fmt: skip
        if self.std == "none" and self.advantage in {"group_batch_std", "gdpo"}:
            raise ValueError(f"advantage = {self.advantage!r} divides by a standard deviation: std must be 'population' or 'sample'")
        for name in ("std", "std_eps"):
            if self.advantage not in _DIVIDED and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with advantage = {self.advantage!r}; drop it or use one of {', '.join(_DIVIDED)}")
        return self


class OnlineDPOConfig(RolloutConfig):
    """Direct preference optimisation on the policy's own answers (2402.04792): best against worst of a group by the reward."""

    kind: Literal["online_dpo"] = "online_dpo"
    """Names the algorithm."""
    samples_per_prompt: int = Field(default=2, ge=2)
    """Answers sampled per prompt; the best and the worst of them make the pair, ties are skipped and counted."""
    loss: Literal["dpo", "ipo", "hinge"] = "dpo"
    """Preference loss: `dpo` softplus(-beta h), `ipo` (h - 1 / (2 beta))^2, `hinge` max(0, 1 - beta h), h the difference of log-ratios."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the tether (per nat): larger holds the policy nearer to the reference."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that the reward ranks a pair wrongly (`dpo` only: cDPO)."""
    min_gap: float = Field(default=0.0, ge=0)
    """A pair whose rewards differ by this or less is a tie."""
    refresh_reference: int = Field(default=0, ge=0)
    """Rounds after which the reference becomes the policy of that moment (iterative DPO); 0 keeps it frozen."""

    @model_validator(mode="after")
    def _smoothing_fits(self) -> OnlineDPOConfig:
        if self.label_smoothing and self.loss != "dpo":
            raise ValueError(f"label_smoothing has no effect with loss = {self.loss!r}; drop it or use 'dpo'")
        return self


AnyRLConfig = Annotated[ActorCriticConfig | CriticFreeConfig | OnlineDPOConfig, Field(discriminator="kind")]
