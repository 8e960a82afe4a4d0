"""The inputs of a case as tensors and numbers, checked: every complaint names the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import torch
from torch import Tensor

from tether.errors import DataError

Outputs = dict[str, Any]
Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True)
class Inputs:
    """The decoded inputs of one case. Float tensors come in `dtype`, all tensors on the default device.

    An optional input that is absent or null is left to the default of tether.maths: see `given`. State: `asked`, the names that were
    looked for.
    """

    values: dict[str, Any]
    dtype: torch.dtype
    asked: set[str] = field(default_factory=set[str])

    def floats(self, name: str) -> Tensor:
        return self._tensor(name, self.raw(name), self.dtype)

    def leaf(self, name: str) -> Tensor:
        """`floats` that autograd follows."""
        return self.floats(name).requires_grad_()

    def rows(self, name: str) -> list[Tensor]:
        """One float tensor per row: rows may differ in length."""
        return [self._tensor(name, row, self.dtype) for row in self.nested(name)]

    def bools(self, name: str) -> Tensor:
        found = self._tensor(name, self.raw(name))
        if bool(((found != 0) & (found != 1)).any()):
            raise DataError(f"input {name!r}: expected true and false")
        return found.bool()

    def ints(self, name: str) -> Tensor:
        found = self._tensor(name, self.raw(name))
        if found.is_floating_point():
            found = self._tensor(name, self.raw(name), torch.float64)
            if not torch.equal(found, found.round()):
                raise DataError(f"input {name!r}: expected whole numbers")
        return found.long()

    def number(self, name: str) -> float:
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"input {name!r}: expected a number, got {_short(value)}")
        return float(value)

    def whole(self, name: str) -> int:
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise DataError(f"input {name!r}: expected a whole number, got {_short(value)}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.raw(name)
        if not isinstance(value, bool):
            raise DataError(f"input {name!r}: expected true or false, got {_short(value)}")
        return value

    def choice(self, name: str, kind: type[Choice]) -> Choice:
        value = self.raw(name)
        if value not in list(kind):
            raise DataError(f"input {name!r}: expected one of {', '.join(kind)}; got {_short(value)}")
        return kind(value)

    def numbers(self, name: str) -> list[float]:
        """A flat list of Python numbers."""
        return [Inputs({name: item}, self.dtype).number(name) for item in self.nested(name)]

    def number_rows(self, name: str) -> list[list[float]]:
        """Ragged rows of Python numbers."""
        return [Inputs({name: row}, self.dtype).numbers(name) for row in self.nested(name)]

    def whole_rows(self, name: str) -> list[list[int]]:
        """Ragged rows of whole numbers."""
        return [
            [
                Inputs({name: item}, self.dtype).whole(name)
                for item in Inputs({name: row}, self.dtype).nested(name)
            ]
            for row in self.nested(name)
        ]

    def nested(self, name: str) -> list[Any]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise DataError(f"input {name!r}: expected a list, got {_short(value)}")
        return value

    def raw(self, name: str) -> Any:
        self.asked.add(name)
        if name not in self.values:
            raise DataError(f"input {name!r} is missing; given: {', '.join(self.values) or 'none'}")
        return self.values[name]

    def refuse_misspelt(self) -> None:
        """Raises DataError for an input that nothing looked for while one of nearly that name was looked for and not there: the default
        would have taken its place, unseen. Other inputs that are not needed may be there."""
        absent = sorted(self.asked - set(self.values))
        for unread in sorted(set(self.values) - self.asked):
            if near := get_close_matches(unread, absent, n=1):
                raise DataError(f"input {unread!r} is not one of this operation; did you mean {near[0]!r}?")

    def has(self, name: str) -> bool:
        self.asked.add(name)
        return self.values.get(name) is not None

    def given(self, read: Callable[[str], Any], *names: str, **renamed: str) -> dict[str, Any]:
        """Keyword arguments of those optional inputs that are there and not null, each read by `read`.

        `renamed` is argument=input where the format's name differs. Example: given(i.number, "eps", low="lo")
        with inputs {"lo": 1, "eps": null} -> {"low": 1.0}.
        """
        wanted = {name: name for name in names} | renamed
        return {argument: read(name) for argument, name in wanted.items() if self.has(name)}

    def _tensor(self, name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
        try:
            return torch.tensor(value, dtype=dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"input {name!r}: {error}") from error


Operation = Callable[[Inputs], Outputs]


def by_name(*operations: Operation) -> dict[str, Operation]:
    """Functions under their own names, which are those of the format."""
    return {operation.__name__: operation for operation in operations}


def gradient(loss: Tensor, *wrt: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, wrt))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
