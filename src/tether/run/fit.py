"""Does the data fit the model? What a tokenizer and a configuration can tell before any weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from tether.config import DirectConfig, ModelConfig, RewardModelConfig, RolloutConfig
from tether.data.lengths import LengthPolicy, limit_prompts, tokenise
from tether.errors import DataError, ModelError
from tether.models.adapters import LoraSpec, add_lora
from tether.models.files import load_tokenizer, require_safetensors
from tether.models.resolve import resolve_model
from tether.records import refuse_bad_rows
from tether.rollout.plain import position_limit
from tether.run.direct import kto_weights_of
from tether.run.direct_stage import prepare_units
from tether.run.reward_stage import prepare_groups
from tether.text.chat import ChatFormat
from tether.types import Comparison, Feedback, Prompt, Ranking

__all__ = ["Base", "check_comparisons", "check_judged", "check_lora", "check_prompts", "load_base", "local_folder"]


@dataclass(frozen=True)
class Base:
    """A model without its weights. ``positions``: most tokens of prompt and answer together; None where the model states none."""

    format: ChatFormat
    config: PreTrainedConfig
    positions: int | None


def local_folder(name: str, *, local_files_only: bool) -> Path | None:
    """The folder of a model, or None for one that the run will download. Raises ModelError where there is none."""
    try:
        folder = resolve_model(name)
    except ModelError:
        if local_files_only or "/" not in name:
            raise
        return None
    require_safetensors(str(folder))
    return folder


def load_base(folder: Path, *, trust_remote_code: bool) -> Base:
    """Tokenizer and configuration of a model folder."""
    tokenizer = load_tokenizer(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} cannot be loaded: {error}") from error
    if (folder / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
    else:
        generation = GenerationConfig.from_model_config(config)
    _refuse_tokens_without_rows(folder, tokenizer, config.get_text_config().vocab_size)
    return Base(ChatFormat(tokenizer, generation_config=generation), config, position_limit(config.to_dict()))


def _refuse_tokens_without_rows(folder: Path, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Tokens past the embedding that text alone can produce. A special token without a row is left to whoever writes it."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    if past := sorted(index for index in tokenizer.get_vocab().values() if index >= rows and index not in special):
        raise ModelError(
            f"{folder}: the tokenizer has {len(past)} tokens, from id {past[0]} on, for which the model has no row (its embedding has "
            f"{rows}); take the tokenizer that belongs to the model, or enlarge it: model.resize_token_embeddings(len(tokenizer))"
        )


def check_prompts(base: Base, prompts: Sequence[Prompt], source: str, budget: int, rl: RolloutConfig | None = None) -> None:
    """DataError with the rows whose prompt is over the stage's limit, or leaves no room for ``budget`` new tokens."""
    ids = tokenise(prompts, lambda prompt: base.format.prompt_ids(prompt.text), source)
    limit = rl.max_prompt_tokens if rl else None
    policy = LengthPolicy(rl.long_prompts) if rl else LengthPolicy.ERROR
    room = None if base.positions is None else base.positions - budget
    if room is not None and room < 1:
        raise DataError(f"max_new_tokens = {budget} leaves no room for a prompt in the {base.positions} positions of the model; lower it")
    left_out = [limit is not None and policy is LengthPolicy.FILTER and len(row) > limit for row in ids]
    if room is not None and (limit is None or limit > room):
        remedy = f"{room} leave room for max_new_tokens = {budget} in the {base.positions} positions of the model; shorten it or lower that"
        long = {i: len(row) for i, row in enumerate(ids, start=1) if len(row) > room and not left_out[i - 1]}
        refuse_bad_rows({i: f"the prompt has {length} tokens, {remedy}." for i, length in long.items()}, source, len(ids))
    if limit is not None:
        limit_prompts(ids, limit, policy, source)


def check_comparisons(
    base: Base, records: Sequence[Comparison | Ranking], config: RewardModelConfig, source: str, seed: int
) -> None:
    """DataError for comparisons or rankings that the reward model could not be trained on."""
    prepare_groups(records, config, ChatFormat(base.format.tokenizer), source, seed)


def check_judged(
    base: Base, records: Sequence[Comparison] | Sequence[Feedback], config: DirectConfig, source: str, seed: int
) -> None:
    """DataError for comparisons or judged answers that a direct preference loss could not be trained on."""
    kto_weights_of(prepare_units(records, config, base.format, source, seed, base.positions).training, config)


def check_lora(base: Base, model: ModelConfig) -> list[str]:
    """Put the adapters into the model without weights. Raises ModelError where they do not fit; returns what is odd.

    Targets that match nothing are an error if they were written by hand or if none matches; the default names those of several families.
    """
    assert model.lora is not None
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(base.config, trust_remote_code=model.trust_remote_code)
    named = [name for name, module in empty.named_modules() if isinstance(module, nn.Linear) or not list(module.children())]
    unmatched = [target for target in model.lora.targets if not any(f".{name}".endswith(f".{target}") for name in named)]
    if unmatched and ("targets" in model.lora.model_fields_set or len(unmatched) == len(model.lora.targets)):
        known = sorted({name.rsplit(".", 1)[-1] for name, module in empty.named_modules() if isinstance(module, nn.Linear)})
        near = [match for target in unmatched for match in get_close_matches(target, known, n=1)]
        hint = f"did you mean {', '.join(near)}?" if near else f"its linear layers are: {', '.join(known)}"
        raise ModelError(f"no layer of the model is called {', '.join(unmatched)}; {hint}")
    add_lora(empty, LoraSpec(**model.lora.model_dump()), 0)
    return [f"no layer of the model is called {', '.join(unmatched)}: no adapter is put there"] if unmatched else []
