"""The configuration of a run: frozen models, TOML or YAML in, JSON out, every problem reported at once.

A run is a list of optional stages; a stage runs if and only if its section is present::

    [model]  ->  [sft]  ->  [reward_model]  ->  [rl.NAME] (one or more, each from the same start)  ->  [evaluate]

The sentence under a field is its help text and its entry in docs/configuration.md. This module does not import torch.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tether.errors import ConfigError

__all__ = [
    "AnyRLConfig", "ComputeConfig", "DataSource", "EvaluateConfig", "GRPOConfig", "KLConfig", "LoRAConfig",
    "ModelConfig", "OptimConfig", "PPOConfig", "RewardModelConfig", "RewardPartConfig", "RunConfig", "SFTConfig",
    "SamplingConfig", "explain", "load_config", "parse_config", "resolved_json",
]


_Decay = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _partial_sections_keep_defaults(cls, data: Any) -> Any:
        """A section given in part keeps the defaults that its parent chose for the rest (GRPO's KL acts in the loss)."""
        if not isinstance(data, dict):
            return data
        merged = dict(data)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, BaseModel) and isinstance(merged.get(name), dict):
                merged[name] = {**field.default.model_dump(exclude_unset=True), **merged[name]}
        return merged


class LoRAConfig(_Section):
    """Low-rank adapters instead of full fine-tuning; the reference is then the same model with the adapter off."""

    rank: int = Field(default=16, ge=1)
    """Rank of the update of each adapted matrix."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale numerator: the update is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter."""


class ModelConfig(_Section):
    """The model that every stage starts from."""

    path: str = "smollm2"
    """A local folder, a hub id, `smollm2` (after `tether fetch smollm2`) or `tiny` (made on the spot, for trying things)."""
    lora: LoRAConfig | None = None
    """Adapters for the RL stage; absent means full fine-tuning."""
    local_files_only: bool = True
    """True never goes to the network; set false to let Hugging Face download a hub id."""
    trust_remote_code: bool = False
    """Runs Python code that ships inside a model folder. Dangerous; written to the log when true."""


class DataSource(_Section):
    """Where rows come from."""

    path: str
    """A .jsonl or .parquet file, a `datasets` folder, a hub id, or `tether:NAME` for data bundled with Tether."""
    split: str = "train"
    """Split of a `datasets` folder or hub id; without effect on a single file."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many rows."""


class OptimConfig(_Section):
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
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global gradient norm above which the gradient is scaled down."""


class ComputeConfig(_Section):
    """Precision, memory and threads."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of matrix products; weights, gradients, reductions and log-probabilities stay float32. `auto`: bfloat16 where the processor
    multiplies it in hardware, else float32."""
    token_budget: int = Field(default=4096, ge=16)
    """Most tokens (rows x longest row) in one forward and backward pass; more are accumulated. Changes memory, never the result."""
    activation_checkpointing: bool = False
    """Recompute layer activations in the backward pass: less memory, about a third more time."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; absent means all cores that this process may use."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`cpu`, `cuda`, or `auto`: cuda when present."""


class SamplingConfig(_Section):
    """How answers are drawn; stored with every rollout as its sampling contract."""

    max_new_tokens: int = Field(default=64, ge=1)
    """Token budget of an answer; one that reaches it without an end token counts as truncated."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits, in the sampler and in the trainer alike."""
    max_rows: int = Field(default=64, ge=1)
    """Answers generated side by side. Changes speed and memory, not randomness."""


class SFTConfig(_Section):
    """Supervised fine-tuning on demonstrations; the loss is the mean over response tokens."""

    data: DataSource
    """Demonstrations: `messages`, or `prompt` and `completion`."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=16, ge=1)
    """Demonstrations per optimiser step."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus completion; longer completions are cut from the right and counted."""
    optim: OptimConfig = OptimConfig(learning_rate=2e-5, warmup_steps=2)
    """Optimiser of this stage."""


class RewardModelConfig(_Section):
    """A Bradley-Terry reward model fitted to comparisons."""

    data: DataSource
    """Comparisons: `prompt`, `chosen`, `rejected` (plain or conversational)."""
    path: str | None = None
    """Backbone of the reward model; absent means the policy's start (after SFT if that stage ran)."""
    held_out_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the prompts kept for the accuracy; all pairs of a prompt are on one side of the split."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training pairs."""
    batch_size: int = Field(default=16, ge=1)
    """Pairs per optimiser step."""
    max_length: int = Field(default=512, ge=8)
    """Token limit of prompt plus answer; pairs that no longer differ after cutting are dropped and counted."""
    centering: float = Field(default=0.01, ge=0)
    """Weight of (score chosen + score rejected)^2, which keeps scores near 0."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Probability that a label is taken to be wrong."""
    head_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the new score head; absent means that of the trunk."""
    optim: OptimConfig = OptimConfig(learning_rate=1e-5, warmup_steps=2)
    """Optimiser of this stage."""


class RewardPartConfig(_Section):
    """One weighted part of the reward."""

    kind: Literal["learned", "exact", "format", "length", "overlong"]
    """`learned`: a reward model; `exact`: equality with an answer column; `format`: a pattern; `length`: a band; `overlong`: DAPO eq. 13."""
    weight: float = 1.0
    """Factor of this part in the sum."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Settings of the part, e.g. `column` and `marker` of `exact`; `path` of `learned` (absent: the model of the reward_model stage)."""


class KLConfig(_Section):
    """The tether: KL(policy || reference), in nats."""

    beta: float = Field(default=0.05, ge=0)
    """Strength of the tether, reward units per nat."""
    where: Literal["reward", "loss"] = "reward"
    """`reward`: -beta * k1 on every token's reward, detached; `loss`: + beta * estimator in the loss. One place, never both."""
    estimator: Literal["k1", "k2", "k3", "k3_corrected"] = "k1"
    """Per-token estimator. In the reward only k1 is unbiased in its gradient; in the loss use k2 or k3_corrected (k3 times the
    importance ratio). Plain k3 as a loss pulls along KL(reference || policy) and is accepted knowingly; k1 as a loss has zero mean gradient and is refused."""
    target: float | None = Field(default=None, gt=0)
    """Adaptive controller: wanted mean over sequences of the summed k1 (nats per sequence); absent keeps beta fixed."""
    horizon: int = Field(default=10_000, ge=1)
    """Sequences over which the adaptive controller reacts."""

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
        return self


class _OnlineConfig(_Section):
    """What PPO and GRPO share."""

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
    kl: KLConfig = KLConfig()
    """The tether to the frozen reference."""
    epochs: int = Field(default=1, ge=1)
    """Passes over one round's rollouts."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per pass; rows are permuted afresh each pass."""
    eps_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip: ratios below 1 - eps_low get no gradient where the advantage is negative."""
    eps_high: float = Field(default=0.2, gt=0)
    """Upper clip: ratios above 1 + eps_high get no gradient where the advantage is positive."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"] = "token_mean"
    """How token losses become one number; the denominator is counted once over the whole optimiser step. `token_sum_norm` divides by
    rows x max_new_tokens."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the mean token entropy (nats), added to what is maximised."""
    target_kl: float | None = Field(default=None, gt=0)
    """Stop the passes of a round before a minibatch whose KL(old || new), k3, exceeds 1.5 times this (nats per token)."""
    optim: OptimConfig = OptimConfig()
    """Optimiser of the policy (and of a shared value head)."""


class PPOConfig(_OnlineConfig):
    """Proximal policy optimisation with a learned value function (Schulman et al. 2017, 1707.06347)."""

    kind: Literal["ppo"] = "ppo"
    """Names the algorithm."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE lambda: 0 trusts the value function, 1 the observed return."""
    critic: Literal["shared", "separate", "reward_model"] = "shared"
    """`shared`: a zero-initialised head on the policy's trunk; `separate`: an own trunk from the policy's start with a zero head;
    `reward_model`: an own trunk and head from the reward_model stage."""
    value_coef: float = Field(default=0.1, ge=0)
    """Weight of the value loss beside the policy loss (shared trunk) or of its own (separate critic)."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """Values may move this far from the old ones before their loss stops pulling; absent switches the clip off."""
    value_learning_rate: float | None = Field(default=None, gt=0)
    """Learning rate of a separate critic or of the shared head; absent means that of the policy."""
    whiten_advantages: bool = True
    """Advantages get mean 0 and variance 1 over the live tokens of the round."""

    @model_validator(mode="after")
    def _token_kl(self) -> PPOConfig:
        if self.aggregation == "token_sum_norm" and self.whiten_advantages:
            raise ValueError("aggregation = 'token_sum_norm' with whiten_advantages = true: whitening already fixes the scale; choose one")
        return self


class GRPOConfig(_OnlineConfig):
    """Group-relative policy optimisation (DeepSeekMath, 2402.03300): the group's mean is the baseline."""

    kind: Literal["grpo"] = "grpo"
    """Names the algorithm."""
    samples_per_prompt: int = Field(default=8, ge=2)
    """Answers sampled per prompt (G); a group of one has no baseline."""
    std: Literal["population", "sample", "none"] = "population"
    """Standard deviation that advantages are divided by; `none` only centres (Dr. GRPO)."""
    std_eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation."""
    kl: KLConfig = KLConfig(where="loss", estimator="k3_corrected", beta=0.02)
    """The tether to the frozen reference."""


AnyRLConfig = Annotated[PPOConfig | GRPOConfig, Field(discriminator="kind")]


class EvaluateConfig(_Section):
    """Held-out evaluation of the start and of every trained policy, on the same prompts with the same randomness."""

    prompts: DataSource
    """Held-out prompts; overlap with training prompts is an error."""
    score: Literal["plainspoken", "exact"] = "plainspoken"
    """Independent score: the simulated rater's noiseless rule, or equality with the answer column. Never a training reward of a learned kind."""
    score_params: dict[str, Any] = Field(default_factory=dict)
    """Settings of the score, as in a reward part."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers per held-out prompt; the interval treats the prompt as the unit."""
    sampling: SamplingConfig = SamplingConfig()
    """How answers are drawn."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the bootstrap intervals."""


class RunConfig(_Section):
    """One run from a start model to a report."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its folder is `output/name`."""
    output: str = "runs"
    """Folder that holds runs."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random: data order, heads, sampling, bootstrap."""
    model: ModelConfig = ModelConfig()
    """The start model."""
    compute: ComputeConfig = ComputeConfig()
    """Precision, memory and threads."""
    sft: SFTConfig | None = None
    """Supervised fine-tuning; its result is the start and the reference of the RL stage."""
    reward_model: RewardModelConfig | None = None
    """Reward model from comparisons."""
    rl: dict[str, AnyRLConfig] = Field(default_factory=dict)
    """Online stages by name, `[rl.NAME]`; each starts from the same weights, so that they can be compared."""
    evaluate: EvaluateConfig | None = None
    """Held-out evaluation before and after."""

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        problems = list(_cross_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return Path(self.output) / self.name


def _cross_problems(config: RunConfig) -> Iterator[str]:
    """Problems that concern several sections."""
    if not (config.sft or config.reward_model or config.rl or config.evaluate):
        yield "no stage: add at least one of [sft], [reward_model], [rl.NAME], [evaluate]"
    for name, rl in config.rl.items():
        where = f"rl.{name}"
        if not name.replace("-", "_").isidentifier():
            yield f"{where}: a stage name is made of letters, digits, - and _"
        if rl.long_prompts == "filter" and rl.max_prompt_tokens is None:
            yield f"{where}.long_prompts = 'filter' has no effect without {where}.max_prompt_tokens; set a limit or drop it"
        needs_model = any(part.kind == "learned" and "path" not in part.params for part in rl.rewards)
        if needs_model and config.reward_model is None:
            yield f"{where}.rewards: a learned part without params.path needs a [reward_model] stage; add one or name a path"
        if rl.prompts_per_step * rl.samples_per_prompt < rl.minibatches:
            yield f"{where}.minibatches = {rl.minibatches} is more than the {rl.prompts_per_step * rl.samples_per_prompt} rows of a step"
        if isinstance(rl, PPOConfig) and rl.critic == "reward_model" and config.reward_model is None:
            yield f"{where}.critic = 'reward_model' needs a [reward_model] stage; add one or use 'shared' or 'separate'"
    if config.evaluate and config.rl:
        held = config.evaluate.prompts.path
        for name, rl in config.rl.items():
            if held == rl.prompts.path and config.evaluate.prompts.split == rl.prompts.split:
                yield f"evaluate.prompts and rl.{name}.prompts are the same data ({held}); held-out prompts must be others"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a TOML or YAML file, apply ``dotted.path=value`` overrides, validate.

    Raises :class:`ConfigError` with every problem at once: unknown keys with the nearest known name, wrong values with their path.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the file ({error}); give the path of a .toml, .yaml or .json file", str(path)) from error
    return parse_config(text, source.suffix, overrides, str(path))


def parse_config(text: str, suffix: str, overrides: Sequence[str] = (), source: str = "") -> RunConfig:
    """Like :func:`load_config`, from a string; ``suffix`` is ``.toml``, ``.yaml``, ``.yml`` or ``.json``."""
    data = _parse_text(text, suffix, source)
    for override in overrides:
        _apply_override(data, override, source)
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig), source) from None


def _parse_text(text: str, suffix: str, source: str) -> dict[str, Any]:
    try:
        if suffix == ".toml":
            data: Any = tomllib.loads(text)
        elif suffix in {".yaml", ".yml"}:
            data = yaml.safe_load(text)
        elif suffix == ".json":
            data = json.loads(text)
        else:
            raise ConfigError(f"a configuration ends in .toml, .yaml, .yml or .json, not {suffix!r}", source)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"not readable as {suffix[1:]}: {error}", source) from error
    if not isinstance(data, dict):
        raise ConfigError(f"expected sections, got a {type(data).__name__}; start with e.g. [model]", source)
    return data


def _apply_override(data: dict[str, Any], override: str, source: str) -> None:
    """``a.b.c=value`` with the value read as TOML (a bare word is a string). Unknown names are found at validation."""
    path, equals, raw = override.partition("=")
    keys = path.strip().replace("-", "_").split(".") if not path.strip().startswith("rl.") else path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r}: expected dotted.path=value, e.g. sft.epochs=2", source)
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    node: Any = data
    for depth, key in enumerate(keys[:-1]):
        node = _descend(node, key, ".".join(keys[: depth + 1]), source)
    if isinstance(node, list):
        index = _list_index(node, keys[-1], path, source)
        node[index] = value
    else:
        node[keys[-1]] = value


def _descend(node: Any, key: str, path: str, source: str) -> Any:
    if isinstance(node, list):
        return node[_list_index(node, key, path, source)]
    child = node.setdefault(key, {})
    if not isinstance(child, dict | list):
        raise ConfigError(f"override {path}: {path} is the value {child!r}, not a section", source)
    return child


def _list_index(node: list[Any], key: str, path: str, source: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(f"override {path}: expected an index from 0 to {len(node) - 1}, got {key!r}", source)
    return int(key)


def explain(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One sentence per problem of ``root``: dotted path, value, what was expected, and the nearest name of an unknown setting."""
    problems: list[str] = []
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for index, part in enumerate(item["loc"]) if not (index == 2 and item["loc"][0] == "rl"))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            problems.append(_unknown_key(path, item["loc"], root))
        elif item["type"] == "missing":
            problems.append(f"{path}: is required")
        elif item["type"] == "value_error":
            problems.extend(f"{path}: {line}" if path else line for line in message.split("\n"))
        else:
            problems.append(f"{path} = {_short(item['input'])}: {message[:1].lower()}{message[1:]}")
    return problems


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(path: str, loc: tuple[int | str, ...], root: type[BaseModel]) -> str:
    parent, wrong = _section_at(loc[:-1], root), str(loc[-1])
    known = sorted(parent.model_fields) if parent else []
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return f"{path}: unknown setting; {hint}"


def _section_at(loc: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel] | None:
    """The config model that a location of a validation error points into."""
    by_kind = {"ppo": PPOConfig, "grpo": GRPOConfig}
    model: type[BaseModel] | None = root
    parts = list(loc)
    if len(parts) >= 3 and parts[0] == "rl":
        model, parts = by_kind.get(str(parts[2])), parts[3:]
    for part in parts:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
    return None


def resolved_json(config: RunConfig) -> str:
    """The whole configuration, defaults included, as stable JSON: what is stored and hashed beside a run."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"

