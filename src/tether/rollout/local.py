"""The sampler in this process: the module that is trained also answers, so publishing weights is one cast."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DoesNotFitError, NumericsError, SamplerError
from ..models.memory import free_memory, is_out_of_memory
from ..models.snapshot import Snapshot
from ..pulse import beat
from ..types import Completion, Request, Sampling, StopReason
from .copies import copy_again, packed_gaps
from .drawing import draw
from .llama import PREFILL_TOKENS, LlamaDecoder
from .llama_weights import LlamaWeights, pack_llama, why_not_llama
from .plain import PlainDecoder, position_limit
from .randomness import uniforms
from .sampler import check_requests

__all__ = ["LocalSampler"]

_log = logging.getLogger(__name__)


class LocalSampler:
    """Draws completions from a Hugging Face causal language model under the sampling contract. See
    ``Sampler``.

    Llama, Mistral, Qwen2 and Qwen3, with adapters or without, get a decoder of their own; any other model its own forward pass, which is
    said once in the log. ``compute_dtype`` float32 on a float32 model reads the trained parameters themselves; otherwise the
    weights are copied in that precision at construction and at each ``refresh``, in the layout that the CPU
    multiplies by (``prepacked``) where that changes no bit. ``snapshot``: whose model this is, where the trained
    weights must not be read between two of them. ``version`` is stamped on every token. Where memory runs out,
    fewer answers are drawn side by side from then on, and come out the same.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Sequence[int],
        pad_id: int,
        compute_dtype: torch.dtype,
        max_rows: int = 64,
        version: int = 0,
        snapshot: Snapshot | None = None,
    ) -> None:
        if max_rows < 1:
            raise SamplerError(f"max_rows must be at least 1, got {max_rows}")
        self.eos_ids, self.pad_id = frozenset(eos_ids), pad_id
        self.compute_dtype, self.max_rows, self.version = compute_dtype, max_rows, version
        self._model, self._snapshot = model, snapshot
        reason = why_not_llama(model)
        self.plain = reason is not None
        """True where the model's own forward pass is used."""
        self._packed = None if reason else pack_llama(model, compute_dtype)
        if reason:
            _log.warning("sampling by the plain path (slower): %s", reason)
        else:
            _log.info("%s", self.description)

    @property
    def description(self) -> str:
        """One sentence for the log: how answers are computed."""
        if self.plain:
            return "sampler: the model's own forward pass"
        if self._weights.why_plain is None:
            return "sampler: matrices are prepacked for this CPU (oneDNN)"
        return f"sampler: matrices are not prepacked, because {self._weights.why_plain}"

    @property
    def _weights(self) -> LlamaWeights:
        if self._packed is None:
            raise SamplerError(f"the sampler rests, without the copies of weights version {self.version}; refresh(version) makes new ones")
        return self._packed

    def refresh(self, version: int) -> None:
        """Publish: sample from the model's present weights from the next token on, under this version."""
        if self._snapshot is not None:
            self._snapshot.take()
        if self._packed is not None:
            copy_again(self._packed, self._model)
        elif not self.plain:
            self._packed = pack_llama(self._model, self.compute_dtype)
        self.version = version

    def rest(self) -> None:
        """Let go of the copies until the next ``refresh``, which makes them again. Under adapters they stay: all but those is frozen."""
        if self._packed is not None and not self._packed.adapted:
            self._packed = None

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Completions as they finish. Requests are checked before the first is drawn.

        A row ends STOP iff an end token was drawn (it is kept), LENGTH iff the budget ended without one.
        Raises SamplerError for requests that cannot be answered, NumericsError for logits that are not
        finite.
        """
        config = self._model.config.to_dict()
        embedding: Any = self._model.get_input_embeddings()
        vocabulary = embedding.weight.shape[0]
        check_requests(requests, sampling, max_length=position_limit(config), vocabulary=vocabulary)
        return self._generate(requests, sampling)

    @torch.no_grad()
    def forced_logprobs(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
        """log p of given answers, (rows, tokens), by the decode path. See ``proof.ProvableSampler``."""
        told: list[Tensor] = []
        for first in range(0, len(prompts), self.max_rows):
            rows = slice(first, first + self.max_rows)
            requests = [Request(str(n), tuple(prompt), 1, 0) for n, prompt in enumerate(prompts[rows])]
            tokens_RT = torch.tensor([list(answer) for answer in answers[rows]])
            session = self._session(requests, Sampling(tokens_RT.shape[1]))
            logits = session.join([[_Row(request, 0)] for request in requests])
            columns = []
            for at, tokens_R in enumerate(tokens_RT.T):
                if at:
                    logits = session.step(tokens_RT[:, at - 1].tolist())
                logprobs_RV = logits.float().log_softmax(-1)
                columns.append(logprobs_RV.gather(1, tokens_R.to(logits.device)[:, None]))
            told.append(torch.cat(columns, 1))
        return torch.cat(told)

    def copy_gaps(self) -> dict[str, float]:
        """See ``proof.ProvableSampler``; the plain path reads the trained weights themselves, or those of the snapshot."""
        of_snapshot = {} if self._snapshot is None else self._snapshot.gaps()
        return of_snapshot if self.plain else of_snapshot | packed_gaps(self._weights, self._model)

    def _generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        left = [_Row(request, index) for request in requests for index in range(request.num_samples)]
        while left:
            waiting, rows = deque(_batches_of_rows(left, self.max_rows)), list[_Row]()
            try:
                yield from self._answer(requests, waiting, rows, sampling)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.max_rows == 1:
                    raise DoesNotFitError(1, max(len(row.request.prompt_ids) for row in rows) + sampling.max_new_tokens) from error
            else:
                return
            free_memory()
            unfinished = [*rows, *(row for batch in waiting for row in batch)]
            left = [_Row(row.request, row.sample_index) for row in unfinished]
            self._take_fewer(len(rows))

    def _take_fewer(self, rows: int) -> None:
        self.max_rows = max(1, min(self.max_rows, rows) // 2)
        _log.warning(
            "%d answers side by side do not fit in memory: those are begun again, and from here on at most %d are drawn at once. They come "
            "out the same; sampling.max_rows = %d starts the next run there", rows, self.max_rows, self.max_rows,
        )  # fmt: skip

    def _answer(
        self, requests: Sequence[Request], waiting: deque[list[_Row]], rows: list[_Row], sampling: Sampling
    ) -> Iterator[Completion]:
        """Draw what waits. ``rows`` holds those in the making, in the decoder's order."""
        session = self._session(requests, sampling)
        while waiting or rows:
            arrived = _admit(waiting, self.max_rows - len(rows), session, alone=not rows)
            fresh = [row for batch in arrived for row in batch]
            first = not rows
            rows += fresh
            if first or arrived:
                logits = session.join(arrived)
            else:
                logits, fresh = session.step([row.token_ids[-1] for row in rows]), rows
            self._draw(fresh, logits, sampling)
            done = [row for row in rows if row.stop_reason is not None]
            if done:
                order = session.keep([row.stop_reason is None for row in rows])
                rows[:] = [rows[index] for index in order]
            yield from (row.completion(sampling) for row in done)

    def _session(self, requests: Sequence[Request], sampling: Sampling) -> _Session:
        if self.plain:
            return _PlainSession(
                PlainDecoder(self._model, pad_id=self.pad_id, compute_dtype=self.compute_dtype)
            )
        rows = min(self.max_rows, max(1, sum(request.num_samples for request in requests)))
        longest = max((len(request.prompt_ids) for request in requests), default=1)
        return _LlamaSession(self, rows, longest, sampling.max_new_tokens)

    @torch.inference_mode()
    def _draw(self, rows: Sequence[_Row], logits_RV: Tensor, sampling: Sampling) -> None:
        """Append one token to each row and decide which rows ended."""
        beat("sampling")
        keys = [row.request.key for row in rows]
        samples, positions = [row.sample_index for row in rows], [len(row.token_ids) for row in rows]
        uniforms_R = torch.from_numpy(uniforms(keys, samples, positions)).to(logits_RV.device)
        drawn = draw(logits_RV, uniforms_R, sampling)
        tokens, logprobs = drawn.tokens_R.tolist(), drawn.logprobs_R.tolist()
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if logprob != logprob:
                raise NumericsError(
                    f"logits of prompt {row.request.prompt_id!r}, token {len(row.token_ids)} are not finite "
                    f"(weights version {self.version}): the policy has diverged or the checkpoint is damaged"
                )
            row.append(token, logprob, self.version)
            if token in self.eos_ids:
                row.stop_reason = StopReason.STOP
            elif len(row.token_ids) == sampling.max_new_tokens:
                row.stop_reason = StopReason.LENGTH


@dataclass(slots=True)
class _Row:
    """One answer in the making."""

    request: Request
    sample_index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def append(self, token: int, logprob: float, version: int) -> None:
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def completion(self, sampling: Sampling) -> Completion:
        assert self.stop_reason is not None
        return Completion(
            self.request.prompt_id, self.sample_index, tuple(self.token_ids), tuple(self.logprobs),
            tuple(self.versions), self.stop_reason, sampling,
        )  # fmt: skip


class _Session(Protocol):
    """A decoder bound to one call of ``generate``: the same three moves whatever the model."""

    def may_join(self, first: Sequence[_Row], batch: Sequence[_Row], *, alone: bool) -> bool: ...
    def join(self, batches: Sequence[Sequence[_Row]]) -> Tensor: ...
    def step(self, tokens: Sequence[int]) -> Tensor: ...
    def keep(self, alive: Sequence[bool]) -> list[int]: ...


class _LlamaSession:
    def __init__(self, sampler: LocalSampler, max_rows: int, longest_prompt: int, budget: int) -> None:
        self._sampler = sampler
        self._decoder = LlamaDecoder(
            sampler._weights, max_rows=max_rows, max_positions=longest_prompt + budget, response_columns=budget
        )

    def may_join(self, first: Sequence[_Row], batch: Sequence[_Row], *, alone: bool) -> bool:
        return True

    @torch.inference_mode()
    def join(self, batches: Sequence[Sequence[_Row]]) -> Tensor:
        return self._decoder.join(self._sampler._weights, *_prompts_and_counts(batches))

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        return self._decoder.step(self._sampler._weights, tokens)

    @torch.inference_mode()
    def keep(self, alive: Sequence[bool]) -> list[int]:
        return self._decoder.keep(alive)


class _PlainSession:
    def __init__(self, decoder: PlainDecoder) -> None:
        self._decoder = decoder

    def may_join(self, first: Sequence[_Row], batch: Sequence[_Row], *, alone: bool) -> bool:
        same_length = len(first[0].request.prompt_ids) == len(batch[0].request.prompt_ids)
        return alone and (self._decoder.takes_positions or same_length)

    @torch.no_grad()
    def join(self, batches: Sequence[Sequence[_Row]]) -> Tensor:
        return self._decoder.join(*_prompts_and_counts(batches))

    @torch.no_grad()
    def step(self, tokens: Sequence[int]) -> Tensor:
        return self._decoder.step(tokens)

    @torch.no_grad()
    def keep(self, alive: Sequence[bool]) -> list[int]:
        return self._decoder.keep(alive)


def _prompts_and_counts(batches: Sequence[Sequence[_Row]]) -> tuple[list[tuple[int, ...]], list[int]]:
    return [batch[0].request.prompt_ids for batch in batches], [len(batch) for batch in batches]


def _batches_of_rows(rows: Sequence[_Row], max_rows: int) -> Iterator[list[_Row]]:
    """Rows that share a prompt pass: a group, or a part of one that is large against ``max_rows`` (then its
    rows can take places as they come free).
    """
    size = max(1, max_rows // 4)
    for _, group in groupby(rows, key=lambda row: id(row.request)):
        members = list(group)
        yield from (members[first : first + size] for first in range(0, len(members), size))


def _admit(waiting: deque[list[_Row]], free: int, session: _Session, *, alone: bool) -> list[list[_Row]]:
    """Take from the queue, in order, what fits the free rows and one packed prompt pass."""
    taken: list[list[_Row]] = []
    tokens = 0
    while waiting and len(waiting[0]) <= free:
        batch = waiting[0]
        tokens += len(batch[0].request.prompt_ids)
        too_many = bool(taken) and tokens > PREFILL_TOKENS
        if too_many or not session.may_join(taken[0] if taken else batch, batch, alone=alone):
            break
        waiting.popleft()
        free -= len(batch)
        if taken and taken[-1][0].request is batch[0].request:
            taken[-1].extend(batch)
        else:
            taken.append(batch)
    return taken
