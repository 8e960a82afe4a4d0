"""Prompts and answers to token ids, by one rule for SFT, scoring and sampling.

The rule: ids of an answer = ids(prompt with generation header) + ids(content) + end token. What a model
sampled is kept as the
ids it drew (`sampled_example`), never decoded and encoded again: the same text can have several encodings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from tether.errors import DataError, ModelError
from tether.types import Message

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

__all__ = ["ChatFormat", "TokenizedExample", "answer_length", "sampled_example"]

Text = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class TokenizedExample:
    """Token ids of a prompt and its answer; `response_mask` is True exactly where the policy produced the
    token.
    """

    token_ids: tuple[int, ...]
    response_mask: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.response_mask):
            raise DataError(
                f"token_ids has {len(self.token_ids)} entries and response_mask {len(self.response_mask)}: "
                "expected one mask entry per token."
            )
        if self.response_mask and self.response_mask[0]:
            raise DataError(
                "the first token is marked as an answer, but nothing precedes it that could predict it: "
                "give a prompt that is not empty."
            )

    @property
    def num_live(self) -> int:
        """Number of trained tokens."""
        return sum(self.response_mask)


def sampled_example(prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> TokenizedExample:
    """Exactly the ids that were read and drawn. Example: [5, 6], [7, 2] -> ids (5, 6, 7, 2), mask (F, F, T,
    T).
    """
    return TokenizedExample(
        token_ids=(*prompt_ids, *completion_ids),
        response_mask=(*[False] * len(prompt_ids), *[True] * len(completion_ids)),
    )


def answer_length(token_ids: Sequence[int], eos_ids: Sequence[int]) -> int:
    """Tokens up to and including the first end token, all of them when there is none.

    For engines that return rows filled up with pads. Example: [9, 32007, 0, 0] with ends {32007, 32000} ->
    2. Whether an answer
    was cut is the engine's stop reason, never derived from this.
    """
    ends = frozenset(eos_ids)
    return next((at + 1 for at, token in enumerate(token_ids) if token in ends), len(token_ids))


@final
class ChatFormat:
    """How texts become ids for one tokenizer and its template, and which ids end an answer.

    `eos_ids`: every end token: of the tokenizer, of the generation config, of `eos_ids`, and the one that
    the template writes
    after an assistant turn. `pad_id` is filler only: attention masks alone say what is a pad. `fingerprint`
    changes with the
    template and the special tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int] | None = None,
        generation_config: GenerationConfig | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._prefix = _prefix_ids(tokenizer)
        self._turn_end, self._template_problem = self._probe_template()
        eos_id, filler_id = _single_id(tokenizer.eos_token_id), _single_id(tokenizer.pad_token_id)
        ends = {*(eos_ids or ())} if eos_id is None else {*(eos_ids or ()), eos_id}
        ends |= set(_id_list(generation_config.eos_token_id)) if generation_config is not None else set()
        ends |= {self._turn_end[0]} if self._turn_end else set()
        if not ends:
            raise ModelError(
                "no end token: the tokenizer has no eos_token and the generation config no eos_token_id, "
                "so an answer could never end. Set tokenizer.eos_token or pass eos_ids."
            )
        self.eos_ids: tuple[int, ...] = tuple(sorted(ends))
        self._plain_end: int = self.eos_ids[0] if eos_id is None else eos_id
        self.pad_id: int = self._plain_end if filler_id is None else filler_id
        self.fingerprint: str = _fingerprint(tokenizer)

    def prompt_text(self, prompt: Text) -> str:
        """The prompt as the model reads it: a plain string as is, a conversation with the header of the
        answer to come.
        """
        return prompt if isinstance(prompt, str) else self._render(prompt, header=True)

    def prompt_ids(self, text: Text) -> list[int]:
        """Ids of `prompt_text`, after the tokenizer's own beginning token where it has one (exactly one)."""
        ids, size = self._encode(self.prompt_text(text)), len(self._prefix)
        while size and ids[:size] == self._prefix:
            ids = ids[size:]
        ids = [*self._prefix, *ids]
        if not ids:
            raise DataError(
                "the prompt is empty and the tokenizer adds no beginning token: give a prompt with text."
            )
        return ids

    def example(self, prompt: Text, completion: Text) -> TokenizedExample:
        """Prompt and answer as one sequence; assistant turns are trained, their end token included.

        A plain prompt takes a plain completion, which ends in one end token. A conversation takes turns that
        begin and end with
        the assistant, or a string: one assistant turn.
        """
        if isinstance(prompt, str):
            if not isinstance(completion, str):
                raise DataError(
                    "the prompt is a string and the answer a conversation: expected both of one kind. "
                    'Write the prompt as [{"role": "user", "content": ...}].'
                )
            answer = [*self._answer_ids(completion), self._plain_end]
            return sampled_example(self.prompt_ids(prompt), answer)
        turns = (Message("assistant", completion),) if isinstance(completion, str) else tuple(completion)
        return self._conversation(tuple(prompt), turns)

    def next_prompt_ids(
        self, conversation: Sequence[Message], token_ids: Sequence[int], turns: Sequence[Message]
    ) -> list[int]:
        """Ids of the next request of a conversation: `token_ids` unchanged, then `turns` and the header of
        the next answer.

        `conversation` ends with the assistant turn just sampled; `token_ids` are its exact ids so far,
        prompt and answer. An answer that was cut gets its end token.
        """
        end_id, end_text = self._require_turn_end()
        earlier, stand_in = list(conversation[:-1]), Message("assistant", "b")
        seen = self._render(earlier, header=True) + stand_in.content + end_text
        gap = _rest(self._render([*earlier, stand_in, *turns], header=True), seen)
        closing = [] if token_ids and token_ids[-1] in self.eos_ids else [end_id]
        return [*token_ids, *closing, *self._encode(gap)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens; for readers and reward rules, never to be encoded for
        training.
        """
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _conversation(self, prompt: tuple[Message, ...], turns: tuple[Message, ...]) -> TokenizedExample:
        end_id, end_text = self._require_turn_end()
        if not turns or turns[0].role != "assistant" or turns[-1].role != "assistant":
            roles = ", ".join(turn.role for turn in turns) or "no turns"
            raise DataError(f"the answer must begin and end with an assistant turn; its roles are: {roles}.")
        history, seen = list(prompt), self.prompt_text(prompt)
        ids = self.prompt_ids(prompt)
        mask = [False] * len(ids)
        for turn in turns:
            if turn.role == "assistant":
                opened = self._render(history, header=True)
                content = self._content_as_rendered(opened, history, turn)
                context, answer = self._encode(_rest(opened, seen)), [*self._answer_ids(content), end_id]
                ids += [*context, *answer]
                mask += [False] * len(context) + [True] * len(answer)
                seen = opened + content + end_text
            history.append(turn)
        return TokenizedExample(tuple(ids), tuple(mask))

    def _content_as_rendered(self, opened: str, history: list[Message], turn: Message) -> str:
        """The content of an assistant turn as the template writes it: verbatim, or without outer white
        space.
        """
        _, end_text = self._require_turn_end()
        closed = self._render([*history, turn], header=False)
        for content in (turn.content, turn.content.strip()):
            if closed.startswith(opened + content + end_text):
                return content
        raise DataError(
            "the chat template does not write an answer as header + content + end token (expected "
            f"{_short(opened[-30:] + turn.content + end_text)}, it writes "
            f"{_short(closed[max(0, len(opened) - 30) :])}), so trained and sampled ids would differ. Use a "
            "template without thinking blocks or rewriting, or plain strings."
        )

    def _answer_ids(self, content: str) -> list[int]:
        """Ids of an answer without its end tokens; special text inside it is refused."""
        ids = self._encode(content)
        while ids and ids[-1] in self.eos_ids:
            ids.pop()
        inside = next((token for token in ids if token in self.eos_ids or token in self._prefix), None)
        if inside is not None:
            raise DataError(
                "the answer holds the text of the special token "
                f"{self.tokenizer.convert_ids_to_tokens(inside)!r} before its end, where a sampled answer "
                "would have stopped or begun: remove that text."
            )
        return ids

    def _encode(self, text: str) -> list[int]:
        return (
            list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []
        )

    def _render(self, messages: Sequence[Message], *, header: bool) -> str:
        from jinja2 import TemplateError

        from tether.text.template_limits import refuse_powers, template_limits

        if self.tokenizer.chat_template is None:
            raise DataError(
                "the data holds conversations but the tokenizer has no chat template: use a chat "
                "(instruct) model, set tokenizer.chat_template, or write prompts and answers as plain "
                "strings."
            )
        if not messages:
            raise DataError("a conversation without messages: expected at least one.")
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            refuse_powers(self.tokenizer.get_chat_template())
            with template_limits():
                text: Any = self.tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=header
                )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m.role for m in messages)
            raise DataError(
                f"the chat template refuses a conversation with roles {roles}: {error}"
            ) from error
        return text

    def _require_turn_end(self) -> tuple[int, str]:
        if self._turn_end is None:
            raise DataError(self._template_problem)
        return self._turn_end

    def _probe_template(self) -> tuple[tuple[int, str] | None, str]:
        """(id and text of the token that ends an assistant turn, "") or (None, why there is none)."""
        question, answer = Message("user", "a"), Message("assistant", "b")
        try:
            opened = self._render([question], header=True)
            closed = self._render([question, answer], header=False)
        except DataError as error:
            return None, str(error)
        if not closed.startswith(opened + "b"):
            return None, (
                "the chat template does not write an answer right after the generation header (header "
                f"{_short(opened[-40:])}, full text {_short(closed[-60:])}), so trained and sampled ids "
                "would differ. Use another template, or plain strings."
            )
        rest = closed[len(opened) + 1 :]
        first = self._encode(rest)[:1]
        token = str(self.tokenizer.convert_ids_to_tokens(first[0])) if first else ""
        if not first or not rest.startswith(token) or not _is_special(self.tokenizer, first[0]):
            return None, (
                f"the chat template writes no end token after an answer (it writes {_short(rest)}), so the "
                "model would never learn to stop. End assistant turns with {{ eos_token }} in the template."
            )
        return (first[0], token), ""


def _is_special(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bool:
    added = tokenizer.added_tokens_decoder
    return token_id in tokenizer.all_special_ids or (token_id in added and added[token_id].special)


def _prefix_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before a text (its beginning token), found by asking it."""
    bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    starts = (at for at in range(len(full) - len(bare) + 1) if full[at : at + len(bare)] == bare)
    if not bare:  # a toy vocabulary without that letter
        return [token for token in full if token == tokenizer.bos_token_id][:1]
    return full[: next(starts, 0)]


def _single_id(token_id: object) -> int | None:
    return token_id if isinstance(token_id, int) else None


def _id_list(ids: int | Sequence[int] | None) -> Sequence[int]:
    return () if ids is None else (ids,) if isinstance(ids, int) else ids


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    template = None if tokenizer.chat_template is None else tokenizer.get_chat_template()
    special = {
        token: tokenizer.convert_tokens_to_ids(token)
        for value in tokenizer.special_tokens_map.values()
        for token in map(str, [value] if isinstance(value, str) else value)
    }
    names = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    text = json.dumps({"template": template, "ids": special, "names": names}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _rest(text: str, seen: str) -> str:
    """What `text` adds after `seen`; a template that rewrites earlier turns is refused."""
    if not text.startswith(seen):
        raise DataError(
            "the chat template rewrites earlier turns when later ones follow, so a conversation of several "
            "answers has no single sequence of ids. Use demonstrations with one assistant turn, or a "
            "template that only appends."
        )
    return text[len(seen) :]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
