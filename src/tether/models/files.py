"""Model folders: what may be loaded, the faults corrected on load, and fingerprints.

Loads use local files only, run no remote code and read safetensors only (a pickle can run code), unless told
otherwise where there is a choice: a folder with pickled weights alone is refused.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from ..errors import ModelError
from ..files import free_bytes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@final
@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, and the parameter names that its checkpoint did not hold, held in another shape, or held besides."""

    model: PreTrainedModel
    missing: tuple[str, ...]
    mismatched: tuple[str, ...]
    unexpected: tuple[str, ...] = ()


def load_model(
    auto_class: Any, path: str, *, dtype: str, local_files_only: bool, trust_remote_code: bool, **options: Any
) -> Loaded:
    """`auto_class.from_pretrained` under our rules, ready to train: dropout off, no padding_idx on the
    embedding.

    Raises ModelError with the remedy. What is missing is returned, not judged: the caller knows which head it
    may make.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    require_safetensors(path)
    rules = {
        "local_files_only": local_files_only,
        "trust_remote_code": trust_remote_code,
        "use_safetensors": True,
    }
    try:
        with quiet_bars():
            model, info = auto_class.from_pretrained(
                path, dtype=DTYPES[dtype], output_loading_info=True, ignore_mismatched_sizes=True, **rules, **options
            )
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError, ZeroDivisionError, StrictDataclassError) as error:
        raise ModelError(f"{path} cannot be loaded: {error}{_remedy(path, local_files_only)}") from error
    switch_off_dropout(model)
    model.get_input_embeddings().padding_idx = (
        None  # nn.Embedding drops this row's gradient; it may be the end token
    )
    if broken := next((name for name, weight in model.named_parameters() if not _is_finite(weight)), None):
        raise ModelError(f"{path}: {broken} holds numbers that are not finite: it diverged or its file is damaged. Take another copy")
    mismatched = tuple(sorted(_shapes(*entry) for entry in info["mismatched_keys"]))
    return Loaded(model, tuple(sorted(info["missing_keys"])), mismatched, tuple(sorted(info["unexpected_keys"])))


def require_safetensors(path: str) -> None:
    """Refuse a folder without a config or without safetensors weights; hub ids are left to the loader."""
    folder = Path(path)
    if not folder.is_dir():
        return
    if not (folder / "config.json").is_file():
        raise ModelError(f"{path} is not a model folder: it holds no config.json")
    if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
        return
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    found = f"only pickled weights ({pickles[0]}), which can run code" if pickles else "no weights"
    raise ModelError(
        f"{path} holds {found}; expected {WEIGHTS}. Convert it where you trust it: "
        "AutoModel...from_pretrained(folder).save_pretrained(folder)"
    )


def load_tokenizer(path: str, *, local_files_only: bool, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer beside the weights. Raises ModelError where there is none, or one that turns a word into nothing."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=local_files_only, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{path} has no usable tokenizer: {error}{_remedy(path, local_files_only)}"
        ) from error
    if not tokenizer("word", add_special_tokens=False)["input_ids"]:
        raise ModelError(f"{path} has no usable tokenizer: it turns 'word' into no token. Copy the tokenizer files into the folder")
    return tokenizer


def refuse_missing(path: str, loaded: Loaded, allowed: tuple[str, ...] = ()) -> None:
    """A weight that the checkpoint does not hold would be random, and one that it holds for a layer of the model and that has no place
    there would be dropped: ModelError naming the first few."""
    if absent := [name for name in loaded.missing if name not in allowed]:
        raise ModelError(
            f"{path} lacks {len(absent)} weights ({', '.join(absent[:3])}): they would be random"
        )
    if loaded.mismatched:
        raise ModelError(f"{path} holds {loaded.mismatched[0]}: its config.json is not that of these weights")
    if dropped := _dropped(loaded):
        raise ModelError(
            f"{path} holds {len(dropped)} weights that its config.json has no place for ({', '.join(dropped[:3])}): without them it would "
            "be another model. Correct config.json (its kind, number of layers, biases)"
        )


def _dropped(loaded: Loaded) -> list[str]:
    """Weights for parts that the model has. What belongs to other parts (a tower for images) is not used, nor is a table of rotations."""
    parts = {name for name, _ in loaded.model.named_modules()} - {"", loaded.model.base_model_prefix}
    own = [name for name in loaded.unexpected if not name.endswith("rotary_emb.inv_freq")]
    return [name for name in own if any(name.startswith(f"{part}.") for part in parts)]


def _is_finite(weight: Tensor) -> bool:
    return weight.is_meta or bool(torch.isfinite(weight.detach().sum(dtype=torch.float32)))


def _shapes(name: str, found: Sequence[int], expected: Sequence[int]) -> str:
    return f"{name} of shape {tuple(found)}, expected {tuple(expected)}"


def switch_off_dropout(model: nn.Module) -> None:
    """Dropout would make the log-probabilities of one policy differ between two passes (case B5): every rate
    becomes 0.

    Modules and the plain attributes that functional dropout reads; the config that is saved keeps its
    numbers.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep one hidden state per layer and recompute the rest in the backward pass (about a third more time).

    transformers does so in train mode only, which is switched on; dropout is 0 in both modes. Its public
    switch is not used: it changes its name between the versions we support, and hooks the embedding, which
    sampling shares.
    """
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if not model.supports_gradient_checkpointing:
        raise ModelError(f"{type(model).__name__} does not support activation checkpointing: switch it off")
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=recompute)
    model.train()


@contextmanager
def quiet_bars() -> Iterator[None]:
    """transformers' progress bars and load reports off: they draw over our own lines, and a missing or mismatched weight is an
    error of ours with a remedy, or a head made on purpose."""
    shown, verbosity = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if shown:
            hf_logging.enable_progress_bar()


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, weights: Mapping[str, Tensor]
) -> None:
    """Weights (safetensors), config, generation config, tokenizer and chat template: a folder for plain
    transformers."""
    with writing_into(folder):
        with quiet_bars():
            model.save_pretrained(folder, state_dict=dict(weights))
        tokenizer.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            file.chmod(stat.S_IMODE((folder / "config.json").stat().st_mode))  # safetensors gives 0600 whatever the umask says


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Make the folder for what the block writes. Raises ModelError naming it, the reason and the free bytes where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{folder} cannot be written ({error}); {free_bytes(folder):,} bytes are free there. Make room (or choose another output=...) "
            "and start again: what is finished is kept"
        ) from error


def fingerprint(module: nn.Module) -> str:
    """sha256 over names, types, shapes and bytes of all parameters (a tied one once), in order of name."""
    digest = hashlib.sha256()
    for name, parameter in sorted(module.named_parameters()):
        plain = parameter.detach().contiguous().cpu()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _remedy(path: str, local_files_only: bool) -> str:
    if Path(path).is_dir() or not local_files_only:
        return ""
    return ". Only local files are looked at: download it first (`hf download`), or allow downloads"
