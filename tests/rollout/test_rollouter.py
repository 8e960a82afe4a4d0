"""Rollouts in the order of prompts whatever the order of arrival; a sampler that breaks its contract is
named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tether.errors import SamplerError
from tether.rollout import ScriptedSampler, collect
from tether.types import Completion, Prompt, Request, Sampling, StopReason

FORMAT = SimpleNamespace(
    prompt_ids=lambda text: [ord(c) for c in text], decode=lambda ids: "".join(chr(i) for i in ids)
)
PROMPTS = [Prompt("a", "Hi"), Prompt("b", "Ho", {"answer": 3})]
SCRIPT = {"a": [[65, 66], [67]], "b": [[68, 69, 70], []]}


def gather(sampler: object, prompts: Sequence[Prompt] = PROMPTS, budget: int = 2, **changes: int) -> list:
    settings = {"num_samples": 2, "run_seed": 0, "step": 1} | changes
    return collect(prompts, sampler, Sampling(budget), FORMAT, **settings)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_order_of_arrival_does_not_matter(seed: int | None) -> None:
    groups = gather(ScriptedSampler(SCRIPT, shuffle_seed=seed))
    assert [[r.text for r in group] for group in groups] == [["AB", "C"], ["DE", ""]]
    assert [[r.truncated for r in group] for group in groups] == [[False, False], [True, False]]
    assert groups[1][0].prompt is PROMPTS[1]
    assert groups[0][0].prompt_ids == (72, 105)
    assert groups[1][0].completion.token_ids == (68, 69)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_every_rollout_is_shown_once_the_moment_it_is_finished(seed: int | None) -> None:
    events: list[object] = []
    sampler = ScriptedSampler(SCRIPT, shuffle_seed=seed)

    class Telling:
        def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
            for completion in sampler.generate(requests, sampling):
                events.append("drawn")
                yield completion

    sampling = Sampling(2)
    groups = collect(PROMPTS, Telling(), sampling, FORMAT, num_samples=2, run_seed=0, step=1, arrived=events.append)
    assert events[::2] == ["drawn"] * 4
    assert {id(shown) for shown in events[1::2]} == {id(rollout) for group in groups for rollout in group}
    assert [group[0].text for group in groups] == ["AB", "DE"]


def test_ids_are_the_samplers_own_though_another_encoding_has_the_text() -> None:
    pieces = {1: "he", 2: "llo", 3: "hello"}
    form = SimpleNamespace(prompt_ids=lambda _: [9], decode=lambda ids: "".join(pieces[i] for i in ids))
    ((rollout,),) = collect(
        [Prompt("a", "x")],
        ScriptedSampler({"a": [[1, 2]]}),
        Sampling(4),
        form,
        num_samples=1,
        run_seed=0,
        step=0,
    )
    assert rollout.text == "hello"
    assert rollout.completion.token_ids == (1, 2)


def test_a_prompt_that_occurs_twice_gets_two_sets_of_answers() -> None:
    seen: list[Request] = []

    def answer(request: Request, index: int) -> list[int]:
        seen.append(request)
        return [65 + len(seen)]

    groups = gather(ScriptedSampler(answer), [PROMPTS[0], PROMPTS[0]])
    assert len({r.key for r in seen}) == 2
    assert {r.completion.prompt_id for group in groups for r in group} == {"a"}
    assert len({r.text for group in groups for r in group}) == 4


def test_keys_depend_on_seed_step_and_prompt_alone() -> None:
    def keys(prompts: Sequence[Prompt], **changes: int) -> dict[str, int]:
        found: dict[str, int] = {}
        gather(
            ScriptedSampler(lambda r, i: found.__setitem__(r.prompt_id, r.key) or [65]), prompts, **changes
        )
        return found

    assert keys(PROMPTS) == keys(PROMPTS[::-1]) == keys(PROMPTS, num_samples=5)
    assert set(keys(PROMPTS, step=2).values()).isdisjoint(keys(PROMPTS).values())
    assert set(keys(PROMPTS, run_seed=2).values()).isdisjoint(keys(PROMPTS).values())


class Tampering:
    """A scripted sampler whose completions pass through a function (None: leave it out)."""

    def __init__(self, change: object) -> None:
        self._change = change

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        for completion in ScriptedSampler(SCRIPT).generate(requests, sampling):
            yield from self._change(completion)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: [c] if c.sample_index else [], "left out 2 of 4"),
        (lambda c: [c, c], "returned before"),
        (lambda c: [replace(c, prompt_id="z")], "not asked for"),
        (lambda c: [replace(c, sampler_logprobs=())], "one each per token"),
        (lambda c: [replace(c, versions=(0, 0, 0))], "one each per token"),
        (lambda c: [replace(c, sampling=Sampling(2, 0.5))], "drawn under"),
        (
            lambda c: [replace(c, token_ids=(1,) * 3, sampler_logprobs=(-1.0,) * 3, versions=(0,) * 3)],
            "more than",
        ),
        (lambda c: [replace(c, sampler_logprobs=(float("nan"),) * len(c.token_ids))], "finite"),
        (lambda c: [replace(c, sampler_logprobs=(0.5,) * len(c.token_ids))], "finite"),
    ],
)
def test_a_sampler_that_breaks_its_contract(change: object, message: str) -> None:
    with pytest.raises(SamplerError, match=message):
        gather(Tampering(change))


def test_script_without_an_answer_and_reason_of_the_engine() -> None:
    with pytest.raises(SamplerError, match="no answer 2"):
        gather(ScriptedSampler(SCRIPT), num_samples=3)
    (completion,) = ScriptedSampler({"a": [[5]]}, logprob=-2.0, version=4).generate(
        [Request("a", (1,), 1, 0)], Sampling(1)
    )
    assert completion.stop_reason is StopReason.STOP
    assert (completion.sampler_logprobs, completion.versions) == ((-2.0,), (4,))
