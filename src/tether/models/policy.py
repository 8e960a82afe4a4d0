"""The causal model that is trained: log-probabilities of the answers it gave, with values when it has a head."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import ModelError
from ..maths.masked import full_precision
from ..text.chat import ChatFormat
from . import files
from .adapters import LoraSpec, add_lora, merged_weights
from .elementwise import lean_layers
from .head import chosen_logprobs, is_fused
from .packed import enable_packing
from .resolve import resolve_model
from .trunk import (
    TokenRows,
    before_live,
    hidden_states,
    last_columns,
    live_positions,
    model_inputs,
    select_by_chunks,
    spread,
)
from .value import ValueHead, head_values, load_head, save_head, zero_head

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class ResponseOutput:
    """Float32, 0 at every column that is not live; column t speaks of token t. Nats, nats, score units.

    ``end_values_B``: of the state after a row's last token, for answers that were cut.
    """

    logprobs_BT: Float[Tensor, "B T"]
    entropy_BT: Float[Tensor, "B T"] | None
    values_BT: Float[Tensor, "B T"] | None
    end_values_B: Float[Tensor, " B"] | None


@final
class Policy(nn.Module):
    """A HF causal model with its tokenizer. `model` is trained in place; samplers and optimisers hold the
    same object."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, value_head: nn.Linear | None = None
    ) -> None:
        super().__init__()
        self.model: PreTrainedModel = model
        self.tokenizer = tokenizer
        self.format = ChatFormat(tokenizer, generation_config=model.generation_config)
        self.value_head = value_head
        self.head_is_plain = _head_is_plain(model)
        enable_packing(model)
        lean_layers(model)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        value_head: ValueHead | str = ValueHead.NONE,
        lora: LoraSpec | None = None,
        dtype: str = "float32",
        local_files_only: bool = True,
        trust_remote_code: bool = False,
        seed: int = 0,
    ) -> Policy:
        """A model folder (see `resolve_model`) ready to train. `seed` draws the adapters; a new value head is
        0.

        A value head saved beside the model is read when `value_head` is "shared". Raises ModelError.
        """
        path = resolve_model(path, local_files_only=local_files_only)
        rules = {"local_files_only": local_files_only, "trust_remote_code": trust_remote_code}
        loaded = files.load_model(AutoModelForCausalLM, str(path), dtype=dtype, **rules)
        files.refuse_missing(str(path), loaded)
        if heads := [name for name in loaded.unexpected if name.split(".")[0] in {"score", "classifier"}]:
            raise ModelError(f"{path} is a model that scores ({heads[0]}), not one that writes: load it with RewardModel.load")
        model = loaded.model
        head = None
        if ValueHead(value_head) is ValueHead.SHARED:
            head = zero_head(model.config.get_text_config().hidden_size)
            load_head(head, Path(path))
        tokenizer = files.load_tokenizer(str(path), **rules)
        policy = cls(model, tokenizer, head)  # looks at the plain model before adapters are put in
        if lora is not None:
            add_lora(model, lora, seed)
        return policy

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.device

    @property
    def config(self) -> Any:
        """The HF config of the model."""
        return self.model.config

    def forward_response(
        self, batch: TokenRows, temperature: float, *, entropy: bool = False, values: bool = False
    ) -> ResponseOutput:
        """log pi(token t | tokens < t) at the sampling temperature for every live token; differentiable.

        The trunk runs once; the output head sees the positions before live tokens only, by chunks. Raises
        ValueError for temperature 0 and for a live column 0, ModelError for values without a value head.
        """
        if values and self.value_head is None:
            raise ModelError(
                'this policy has no value head: load it with value_head="shared", or use a Critic'
            )
        live_BT = live_positions(batch, self.device)
        tokens_N = batch.token_ids_BT.to(self.device)[live_BT]
        hidden_NH, outputs_N, ends_BH = self._before_tokens(batch, live_BT)
        output_head = _output_head(self.model)
        vocabulary = output_head.weight.shape[0]
        if self.head_is_plain and is_fused(output_head):
            logprobs_N, entropy_N = chosen_logprobs(output_head.weight, outputs_N, tokens_N, temperature, entropy=entropy)
        else:
            head = output_head if self.head_is_plain else nn.Identity()
            logprobs_N, entropy_N = select_by_chunks(head, outputs_N, tokens_N, temperature, vocabulary, entropy=entropy)
        return ResponseOutput(
            spread(logprobs_N, live_BT),
            None if entropy_N is None else spread(entropy_N, live_BT),
            spread(head_values(self.value_head, hidden_NH), live_BT) if values and self.value_head else None,
            full_precision(head_values(self.value_head, ends_BH)) if values and self.value_head else None,
        )

    def _before_tokens(self, batch: TokenRows, live_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states before live tokens, what the head takes there (for an unusual head its logits), and
        hidden states at each row's end."""
        ends_B = last_columns(batch, self.device)
        if self.head_is_plain:
            hidden = hidden_states(self.model.get_decoder(), batch, self.device)
            hidden_NH = hidden.before_live(live_BT)
            return hidden_NH, hidden_NH, hidden.at(ends_B)
        inputs = model_inputs(batch, self.device)
        out = self.model(**inputs, use_cache=False, output_hidden_states=self.value_head is not None)
        states_BTD = out.logits if out.hidden_states is None else out.hidden_states[-1]
        rows_B = torch.arange(len(ends_B), device=self.device)
        return before_live(states_BTD, live_BT), before_live(out.logits, live_BT), states_BTD[rows_B, ends_B]

    def ensure_value_head(self) -> None:
        """Add a zero value head where there is none; an existing one is kept."""
        if self.value_head is None:
            self.value_head = zero_head(self.model.config.get_text_config().hidden_size, self.device)

    def enable_activation_checkpointing(self) -> None:
        """Keep one hidden state per layer and recompute the rest in the backward pass; puts the model in
        train mode."""
        files.checkpoint_activations(self.model)

    def save(self, folder: Path | str) -> None:
        """Adapters merged, for plain transformers; a value head goes into value_head.safetensors beside the
        model."""
        target = Path(folder)
        files.save_model(self.model, self.tokenizer, target, merged_weights(self.model))
        if self.value_head is not None:
            save_head(self.value_head, target)

    def weights_fingerprint(self) -> str:
        """sha256 of all weights, value head and adapters included."""
        return files.fingerprint(self)


@torch.no_grad()
def _head_is_plain(model: PreTrainedModel) -> bool:
    """Whether logits are head(hidden) and nothing else: no soft cap, no scale (Gemma 2, Granite, Cohere have
    one).

    Asked of the model itself with a short probe, in train mode on our path, so that leftover dropout shows up
    too.
    """
    ids_BT = torch.arange(8, device=model.device).remainder(model.config.get_text_config().vocab_size)[None]
    mode = model.training
    try:
        expected = model.eval()(input_ids=ids_BT, use_cache=False).logits
        trained = model.train()(input_ids=ids_BT, use_cache=False).logits
        hidden = model.get_decoder()(input_ids=ids_BT, use_cache=False).last_hidden_state
    finally:
        model.train(mode)
    tolerance = 1e-5 * float(expected.abs().max().clamp(min=1))
    if not torch.allclose(trained, expected, atol=tolerance, rtol=0):
        raise ModelError(
            "the model answers differently in train mode: it has dropout that cannot be switched off"
        )
    head = _output_head(model)
    fits = hidden.shape[-1] == head.weight.shape[1]
    if fits and torch.allclose(head(hidden), expected, atol=tolerance, rtol=0):
        return True
    log.warning(
        "%s changes its logits after the head: the plain path is taken, which needs more memory", type(model)
    )
    return False


def _output_head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear), f"the output head is a {type(head).__name__}"
    return head
