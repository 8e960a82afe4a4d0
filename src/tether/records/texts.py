"""What a prompt or an answer is compared by. A text stays in the form that it came in; whether two are one is decided here and nowhere
else.
"""

from __future__ import annotations

from tether.types import Message, Role

__all__ = ["Text", "answer_like", "one_form", "prompt_key"]

Text = str | tuple[Message, ...]
"""A plain string or the turns of a conversation."""


def one_form(text: Text, role: Role) -> Text:
    """A single turn of the role is its string, anything else stays: "Hi" and (Message("user", "Hi"),) are one prompt, as "Yes" and
    (Message("assistant", "Yes"),) are one answer.
    """
    return text[0].content if not isinstance(text, str) and len(text) == 1 and text[0].role == role else text


def answer_like(prompt: Text, answer: str) -> Text:
    """An answer in the form of its prompt: a turn after a conversation, plain text after plain text."""
    return answer if isinstance(prompt, str) else (Message("assistant", answer),)


def prompt_key(prompt: Text) -> str:
    """A string that equal prompts share, in whichever form: what rows are grouped, split and counted by. That of their turns."""
    return repr((Message("user", prompt),) if isinstance(prompt, str) else prompt)
