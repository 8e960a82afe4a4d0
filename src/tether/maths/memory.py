"""Memory of training and generation, in bytes, before anything runs. algorithms.md section 12."""

from enum import StrEnum

TRAINED_BYTES = (
    16  # per parameter: bf16 weight and gradient, fp32 master, two fp32 Adam moments (ZeRO 1910.02054)
)
FROZEN_BYTES = 2  # per parameter, bf16


class ActivationKind(StrEnum):
    """What a layer keeps for the backward pass: FULL attention matrix, FLASH attention, CHECKPOINT (its input
    only).
    """

    FULL = "full"
    FLASH = "flash"
    CHECKPOINT = "checkpoint"


def static_bytes(trained_params: int, frozen_params: int = 0) -> int:
    """16 bytes a trained, 2 a frozen parameter; LoRA: frozen base, trained adapter. Example: 7e9 trained ->
    112e9.
    """
    return TRAINED_BYTES * trained_params + FROZEN_BYTES * frozen_params


def kv_cache_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, num_tokens: int, bytes_per_value: int = 2
) -> int:
    """2 layers kv_heads head_dim bytes tokens: keys and values. Example: 32, 32, 128, one token -> 524288."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value * num_tokens


def logits_bytes(num_tokens: int, vocabulary: int) -> int:
    """tokens V (2 + 4 * 2): bf16 logits, an fp32 copy and its gradient. Example: one token, 32000 ->
    320000.
    """
    return num_tokens * vocabulary * (2 + 4 * 2)


def activation_bytes_per_layer(
    kind: ActivationKind, sequence_length: int, batch_size: int, hidden: int, num_heads: int
) -> int:
    """34 s b h + 5 a s^2 b (full), 34 s b h (flash), 2 s b h (checkpoint). Korthikanti et al. 2205.05198;
    calibrate.

    Example: s 1, b 1, h 4096, a 32 -> 139424, 139264, 8192.
    """
    tokens_by_hidden = sequence_length * batch_size * hidden
    match ActivationKind(kind):
        case ActivationKind.FULL:
            return 34 * tokens_by_hidden + 5 * num_heads * sequence_length**2 * batch_size
        case ActivationKind.FLASH:
            return 34 * tokens_by_hidden
        case _:  # CHECKPOINT
            return 2 * tokens_by_hidden
