"""Values: the scalar head (zero at the start) and the critic with a trunk of its own.

`values_BT[b, t]` = V(state before token t) = head of the hidden state at t - 1, at live tokens; 0 elsewhere.
"""

from __future__ import annotations

import copy
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from ..errors import MissingHeadError, ModelError
from ..maths.masked import full_precision
from . import files
from .adapters import has_adapters
from .elementwise import lean_layers
from .packed import enable_packing
from .resolve import resolve_model
from .trunk import TokenRows, hidden_states, last_columns, live_positions, spread

if TYPE_CHECKING:
    from .reward import RewardModel

HEAD_FILE = "value_head.safetensors"


class ValueHead(StrEnum):
    """Where a policy's values come from: NONE (no values), SHARED (a head on the policy's own trunk)."""

    NONE = "none"
    SHARED = "shared"


class CriticInit(StrEnum):
    """The head of a critic loaded from a folder: ZERO (new), SAVED (value_head.safetensors, refused when
    absent)."""

    ZERO = "zero"
    SAVED = "saved"


def zero_head(hidden_size: int, device: torch.device | str = "cpu") -> nn.Linear:
    """Linear(hidden, 1) in float32 with weight and bias 0: values start at 0, so the first advantages are the
    returns."""
    head = nn.Linear(hidden_size, 1, device=device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def head_values(head: nn.Linear, hidden_ND: Tensor) -> Float[Tensor, " N"]:
    """The head in its own precision (float32), also under autocast."""
    with torch.autocast(hidden_ND.device.type, enabled=False):
        return head(hidden_ND.to(head.weight.dtype))[:, 0]


def save_head(head: nn.Linear, folder: Path) -> None:
    """`value_head.safetensors` beside the model: weight [1, H], bias [1]."""
    with files.writing_into(folder):
        save_file({n: p.detach().cpu().contiguous() for n, p in head.named_parameters()}, folder / HEAD_FILE)


def load_head(head: nn.Linear, folder: Path) -> bool:
    """Read the head beside the model into `head`; False where there is none."""
    if not (folder / HEAD_FILE).is_file():
        return False
    try:
        head.load_state_dict(load_file(folder / HEAD_FILE))
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"{folder / HEAD_FILE} cannot be read: {error}") from error
    return True


@final
class Critic(nn.Module):
    """A value function with its own trunk."""

    def __init__(self, trunk: PreTrainedModel, head: nn.Linear) -> None:
        super().__init__()
        self.trunk: PreTrainedModel = trunk
        self.value_head = head
        enable_packing(trunk)
        lean_layers(trunk)

    @classmethod
    def load(
        cls,
        path: str | Path,
        init: CriticInit | str = CriticInit.ZERO,
        *,
        dtype: str = "float32",
        local_files_only: bool = True,
        trust_remote_code: bool = False,
    ) -> Critic:
        """The trunk of a model folder (a causal or a reward model, or a saved critic) under a head by `init`."""
        path = resolve_model(path, local_files_only=local_files_only)
        rules = {"local_files_only": local_files_only, "trust_remote_code": trust_remote_code}
        loaded = files.load_model(AutoModel, str(path), dtype=dtype, **rules)
        files.refuse_missing(str(path), loaded)
        head = zero_head(loaded.model.config.get_text_config().hidden_size)
        if CriticInit(init) is CriticInit.SAVED and not load_head(head, Path(path)):
            raise MissingHeadError(
                f"{path} has no {HEAD_FILE}: expected a folder written by Critic.save; or use init zero"
            )
        return cls(loaded.model, head)

    @classmethod
    def beside(cls, model: PreTrainedModel) -> Critic:
        """A copy of the trunk of a causal model as it is now, under a zero head. Raises ModelError for
        adapters."""
        if has_adapters(model):
            raise ModelError("this model holds adapters: save it (which merges them) and load a critic from the folder")
        trunk = copy.deepcopy(model.get_decoder())
        assert isinstance(trunk, PreTrainedModel)
        trunk.requires_grad_(True)
        return cls(trunk, zero_head(model.config.get_text_config().hidden_size, model.device))

    @property
    def device(self) -> torch.device:
        """Where the head lies."""
        return self.value_head.weight.device

    def forward_values(self, batch: TokenRows) -> Float[Tensor, "B T"]:
        """V(state before token t) at live tokens, float32, 0 elsewhere."""
        return self.forward_values_and_ends(batch)[0]

    def forward_values_and_ends(self, batch: TokenRows) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
        """As `forward_values`, and V(state after the last token) of each row."""
        live_BT = live_positions(batch, self.device)
        hidden = hidden_states(self.trunk, batch, self.device)
        ends_BH = hidden.at(last_columns(batch, self.device))
        values_BT = spread(head_values(self.value_head, hidden.before_live(live_BT)), live_BT)
        return values_BT, full_precision(head_values(self.value_head, ends_BH))

    def enable_activation_checkpointing(self) -> None:
        """Keep one hidden state per layer and recompute the rest in the backward pass; puts the model in
        train mode."""
        files.checkpoint_activations(self.trunk)

    def save(self, folder: Path | str) -> None:
        """Trunk as safetensors, head beside it. Read back with `init="saved"`."""
        target = Path(folder)
        with files.writing_into(target), files.quiet_bars():
            self.trunk.save_pretrained(target)
        save_head(self.value_head, target)


def critic_from_reward_model(reward_model: RewardModel) -> Critic:
    """A critic that starts as a copy of the reward model: trunk, score weights, and the score offset as the
    bias.

    At the last token of an answer its value is then the (offset) score of the answer.
    """
    if has_adapters(reward_model.model):
        raise ModelError("this reward model holds adapters: save it (which merges them) and load it again")
    trunk = copy.deepcopy(reward_model.trunk)
    assert isinstance(trunk, PreTrainedModel)
    trunk.requires_grad_(True)
    head = zero_head(reward_model.head.in_features, reward_model.device)
    with torch.no_grad():
        head.weight.copy_(reward_model.head.weight)
        head.bias.fill_(reward_model.score_offset)
    return Critic(trunk, head)
