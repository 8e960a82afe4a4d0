"""Options of a lab from the words of a command line."""

from __future__ import annotations

from collections.abc import Mapping

from tether.errors import ConfigError
from tether.labs import LABS

__all__ = ["parse_options"]


def parse_options(name: str, words: Mapping[str, str]) -> dict[str, int | float | str]:
    """Each word in the type that the lab's option has; options that the lab does not know stay words, and ``run_lab`` names them.

    Example: ("reward-model", {"contradict": "5"}) -> {"contradict": 5}. Raises ConfigError for a word that is not of the type.
    """
    kinds = {option.name: option.kind for option in LABS[name].options} if name in LABS else {}
    parsed: dict[str, int | float | str] = {}
    for key, word in words.items():
        option = key.replace("-", "_")
        kind = kinds.get(option, str)
        try:
            parsed[option] = kind(word)
        except ValueError:
            raise ConfigError(f"lab.{name}.{option}: {word!r}; expected {kind.__name__}") from None
    return parsed
