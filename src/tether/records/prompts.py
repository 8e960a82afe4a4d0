"""Where the prompt ends when a row does not say so."""

from __future__ import annotations

import os

from tether.errors import DataError
from tether.records.fields import Text, check_prompt
from tether.types import Message

__all__ = ["explicit_prompt", "implicit_prompt", "split_messages", "without_prompt"]

_TWO_KINDS = "`chosen` and `rejected` are of two kinds: expected two strings or two conversations."
_HH_ANSWER = "\n\nAssistant:"  # the dialogue mark of Anthropic's HH data, where plain pairs hold their prompt


def split_messages(turns: tuple[Message, ...]) -> tuple[Text, Text]:
    """The prompt is everything before the first assistant message, the answer the rest."""
    first = next((at for at, m in enumerate(turns) if m.role == "assistant"), None)
    if first is None:
        raise DataError("`messages` has no assistant message to imitate.")
    if first == 0:
        raise DataError(
            "`messages` begins with the assistant: expected a user message before the first answer."
        )
    check_prompt(turns[:first])
    return turns[:first], turns[first:]


def without_prompt(answer: Text, prompt: Text) -> Text:
    """An answer that repeats the whole conversation is cut to what follows the prompt."""
    if isinstance(answer, str) or isinstance(prompt, str) or answer[: len(prompt)] != prompt:
        return answer
    return answer[len(prompt) :]


def explicit_prompt(prompt: Text, chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """`prompt` next to answers that may be whole conversations holding it again (as UltraFeedback writes
    them).
    """
    if not isinstance(prompt, str):
        return prompt, without_prompt(chosen, prompt), without_prompt(rejected, prompt)
    if isinstance(chosen, str) and isinstance(rejected, str):
        return prompt, chosen, rejected
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(_TWO_KINDS)
    if chosen[0].role == "assistant" and rejected[0].role == "assistant":
        return (Message("user", prompt),), chosen, rejected
    turns, chosen, rejected = _common_turns(chosen, rejected)
    if prompt.strip() not in [m.content.strip() for m in turns]:
        raise DataError(
            "`prompt` is a string that the conversations in `chosen` and `rejected` do not share as a "
            "message; leave `prompt` out or write it as messages."
        )
    return turns, chosen, rejected


def implicit_prompt(chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """The prompt that both answers begin with, and what remains of them."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _common_text(chosen, rejected)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(_TWO_KINDS)
    return _common_turns(chosen, rejected)


def _common_turns(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """The prompt is what both conversations begin with, up to its last user or tool message that an answer
    follows.
    """
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    while shared and chosen[shared - 1].role not in ("user", "tool"):
        shared -= 1
    if not shared:
        raise DataError(
            "`chosen` and `rejected` do not begin with the same user message, so the prompt is unknown: "
            "add `prompt`."
        )
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _common_text(chosen: str, rejected: str) -> tuple[str, str, str]:
    """The prompt is the common beginning, up to the last dialogue mark (HH data), else up to the last white
    space.
    """
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071  letter by letter is meant
    mark = common.rfind(_HH_ANSWER)
    if mark >= 0:
        end = mark + len(_HH_ANSWER)
    elif chosen == rejected:
        raise DataError(
            "`chosen` and `rejected` are the same text, so the prompt in it is unknown: add `prompt`."
        )
    else:
        end = max((at for at, letter in enumerate(common) if letter.isspace()), default=0)
        end = len(common[:end].rstrip())
    if not common[:end].strip():
        raise DataError(
            "`chosen` and `rejected` do not begin with the same text, so the prompt is unknown: add `prompt`."
        )
    return common[:end], chosen[end:], rejected[end:]
