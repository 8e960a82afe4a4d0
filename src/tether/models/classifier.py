"""HF sequence classifiers with one label: loading, the head, and a pad id that plain transformers does not trip over."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import ModelError
from ..text.chat import ChatFormat
from . import files

HEAD = "score.weight"
PAD_TOKEN = "<|pad|>"


def load_classifier(path: str, dtype: str, rules: dict[str, Any]) -> files.Loaded:
    """A one-label classifier with a linear head named `score`; a causal model gets an untrained one. Raises ModelError."""
    files.require_safetensors(path)
    try:
        config = AutoConfig.from_pretrained(path, **rules)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} has no usable config.json: {error}") from error
    classifier = any("ForSequenceClassification" in name for name in config.architectures or ())
    if classifier and config.num_labels != 1:
        raise ModelError(
            f"{path} classifies into {config.num_labels} labels; a reward model has num_labels = 1"
        )
    options = {} if classifier else {"num_labels": 1, "problem_type": "regression"}
    loaded = files.load_model(AutoModelForSequenceClassification, path, dtype=dtype, **rules, **options)
    if not isinstance(dict(loaded.model.named_children()).get("score"), nn.Linear):
        raise ModelError(
            f"{type(loaded.model).__name__} has no head named score: expected a decoder with one linear head"
        )
    files.refuse_missing(path, loaded, allowed=(HEAD,))
    return loaded


def draw_head(model: PreTrainedModel, seed: int) -> None:
    """A fresh head in place of the one there."""
    draw_weight(score_head(model).weight, seed)


@torch.no_grad()
def draw_weight(weight: Tensor, seed: int) -> None:
    """Rows of a head, normal with std 1 / sqrt(hidden + 1), from their seed."""
    generator = torch.Generator().manual_seed(seed)
    weight.copy_(torch.randn(tuple(weight.shape), generator=generator) / math.sqrt(weight.shape[1] + 1))


def score_head(model: PreTrainedModel) -> nn.Linear:
    """The head of a classifier that was loaded here."""
    head = model.get_submodule("score")
    assert isinstance(head, nn.Linear), f"score is a {type(head).__name__}"
    return head


def separate_pad(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A pad id that ends no text: plain transformers looks for the last id that is not the pad id.

    With pad == end it would read the score one token early (SmolLM2, GPT-2). An unused special token is
    taken, or one is added. Our own scores do not look at it.
    """
    ends = ChatFormat(tokenizer).eos_ids
    spare: list[Any] = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    chosen = next((i for i in spare if i is not None and i not in ends), None)
    if chosen is None:
        tokenizer.add_special_tokens({"pad_token": PAD_TOKEN})
        if len(tokenizer) > model.config.get_text_config().vocab_size:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    elif chosen != tokenizer.pad_token_id:
        tokenizer.pad_token = str(tokenizer.convert_ids_to_tokens(chosen))
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
