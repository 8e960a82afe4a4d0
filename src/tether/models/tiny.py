"""A complete model small enough for tests and demos: made on the spot, deterministic, under a second, no
network."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .fetch import write_manifest
from .files import save_model

FORMAT = 1  # part of the cached folder's name: raise it when the model below changes
VOCABULARY = 384
SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
PAD, START, END, STOP = range(4)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "system user assistant you are a helpful assistant and answer the question of the user",
    "what is the capital of France? the capital of France is Paris. what is the colour of the sky? it is "
    "blue.",
    "say a word that is short, say hello to the world, write a sentence about the sea and the sun and the "
    "stars",
    "yes no please thank you because that this there their which would could should other number one two "
    "three four",
    "how many? count to ten: 1 2 3 4 5 6 7 8 9 10. the sum of 2 and 3 is 5, and the answer is 5.",
)


def make_tiny(folder: Path | str, seed: int = 0) -> Path:
    """Write a 2-layer Llama (hidden 64, vocabulary 384, tied head) with a ChatML tokenizer; returns the
    folder.

    The pad token is none of the two end tokens (<|im_end|> and <|endoftext|>, both listed in
    generation_config). The folder appears by one rename; an existing one is replaced.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        built = Path(scratch) / "model"
        model = _model(seed)
        save_model(model, _tokenizer(), built, model.state_dict())
        write_manifest(built, {"maker": "tether.models.tiny", "format": FORMAT, "seed": seed})
        if target.exists():
            shutil.rmtree(target)
        built.rename(target)
    return target


def _tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIALS[PAD],
        eos_token=SPECIALS[END],
        additional_special_tokens=[SPECIALS[START], SPECIALS[STOP]],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _model(seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=[END, STOP])
    return model
