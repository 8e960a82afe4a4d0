"""GGUF -> safetensors for the one model we ship by wheel, with the faults of the conversion corrected and
checked."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from ..errors import FetchError
from .files import save_model

END_TOKEN = "<|im_end|>"
CONTEXT = 8192
CHATML = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
)


def convert_smollm2(gguf: Path, folder: Path) -> None:
    """Write `folder`: float32 safetensors, tokenizer with chat template, generation config with the right end
    token.

    Raises FetchError where the file does not hold SmolLM2's template or end token, or `gguf` is not
    installed.
    """
    try:
        tokenizer = _tokenizer(gguf)
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
    except ImportError as error:
        raise FetchError(
            f"reading the weights needs the package gguf: {error}. Run `pip install gguf`"
        ) from error
    model = _plain(loaded, tokenizer.convert_tokens_to_ids(END_TOKEN))
    save_model(model, tokenizer, folder, model.state_dict())


def _tokenizer(gguf: Path):
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    # The file says `tokenizer.ggml.pre = smollm`: digits stand alone, THEN byte-level words. transformers
    # drops the
    # first step, which changes the ids of spaces before numbers ("a  1").
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = CONTEXT
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    if rendered != CHATML or tokenizer.eos_token != END_TOKEN:
        raise FetchError(
            f"{gguf.name} does not carry SmolLM2's chat template (ChatML ending turns with {END_TOKEN}): got "
            f"{rendered!r}, end token {tokenizer.eos_token!r}"
        )
    return tokenizer


def _plain(loaded: PreTrainedModel, end_id: int) -> PreTrainedModel:
    """The same weights in a model that has forgotten GGUF (a float32 folder must not ask for it when loaded),
    tied, and that says how answers end."""
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=end_id, pad_token_id=end_id)
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        raise FetchError("the weights of SmolLM2 must be tied, and came untied")
    return model
