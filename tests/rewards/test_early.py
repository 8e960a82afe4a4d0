"""Asked early or afterwards: the same scores, failures and errors; and nothing is left running that somebody would have to wait for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from tether.errors import ModelError, RewardError
from tether.pulse import beat, last_beat
from tether.rewards.early import EarlyScores
from tether.rewards.format import FormatPart
from tether.rewards.learned import LearnedPart
from tether.rewards.length import LengthPart, OverlongPart
from tether.rewards.rubric import EarlyPart, Rubric, num_early_workers
from tether.types import Failure, Score, StopReason

LIMIT_S = 20.0  # of what must happen within milliseconds


@dataclass
class Judge:
    """What it does is said by the text. State: the texts it was asked about, and by which threads."""

    early_workers: int
    name: str = "judge"
    asked: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    held: threading.Event = field(default_factory=threading.Event)

    def score(self, rollouts):
        return [self.one(rollout.text) for rollout in rollouts]

    def one(self, text):
        self.asked.append(text)
        self.threads.add(threading.current_thread().name)
        if text == "held":
            assert self.held.wait(LIMIT_S)
        if text == "slow":
            time.sleep(0.05)
        if text == "late":
            raise TimeoutError("no answer within 3 s")
        if text == "broken":
            raise RuntimeError("the judge broke")
        if text == "fatal":
            raise ModelError("the judge is another model")
        return {
            "failed": Failure("judge", "it declined"),
            "none": Score(None),
            "infinite": Score(float("inf")),
            "nothing": "no Score",
        }.get(text, Score(float(len(text)), {"half": len(text) / 2}))


ALL_SORTS = ("right", "slow", "late", "broken", "failed", "none", "infinite", "nothing", "", "a longer answer")


def groups_of(make_rollout, texts=ALL_SORTS):
    groups = [[make_rollout(text, prompt_id="p") for text in texts], [], [make_rollout(text, prompt_id="q") for text in reversed(texts)]]
    return [*groups, [make_rollout("cut off", stop=StopReason.ABORT), make_rollout("last")]]


def scored(judge, groups, order=None):
    rubric = Rubric([("length", 1.0, LengthPart(1, 2, 4)), ("judge", 2.0, judge)])
    return handed_and_scored(rubric, groups, order, max_failure_share=1.0)


def handed_and_scored(rubric, groups, order=None, max_failure_share=0.1):
    """Every rollout handed over, in ``order`` of arrival, then scored."""
    rollouts = [rollout for group in groups for rollout in group]
    with EarlyScores(rubric) as early:
        for number in order or range(len(rollouts)):
            early.hand_over(rollouts[number])
        return rubric.score(groups, max_failure_share, early)


@pytest.mark.parametrize("workers", [1, 3, 64])
@pytest.mark.parametrize("backwards", [False, True])
def test_scores_order_components_and_failures_are_those_of_asking_afterwards(make_rollout, workers, backwards):
    groups, early, after = groups_of(make_rollout), Judge(workers), Judge(0)
    count = sum(map(len, groups))
    order = list(reversed(range(count))) if backwards else None
    assert repr(scored(early, groups, order)) == repr(scored(after, groups))  # as text, since NaN differs from itself
    assert sorted(early.asked) == sorted(t for group in groups for t in (r.text for r in group) if t != "cut off")  # once each
    assert len(early.threads) <= workers
    assert threading.main_thread().name not in early.threads
    assert after.threads == {threading.main_thread().name}


def test_it_is_asked_while_others_are_still_to_come_and_may_end_after_the_last(make_rollout):
    judge = Judge(1)
    rubric = Rubric([("judge", 1.0, judge)])
    group = [make_rollout("held"), make_rollout("word")]
    with EarlyScores(rubric) as early:
        early.hand_over(group[0])
        assert wait_for(lambda: judge.asked == ["held"])
        assert early.busy_s() > 0
        early.hand_over(group[1])
        beat("sampling")
        threading.Timer(0.05, judge.held.set).start()  # it ends while the rubric waits for it
        (result,) = rubric.score([group], early=early)
        assert last_beat().part == "reward part 'judge'"  # what a watchdog would name
        busy_s = early.busy_s()
        assert busy_s == early.busy_s()  # nothing runs any more
    assert result.scores == (4.0, 4.0)
    assert living() == []


def test_calls_run_side_by_side_up_to_the_declared_number(make_rollout):
    judge = Judge(2)
    rollouts = [make_rollout("held") for _ in range(3)]
    with EarlyScores(Rubric([("judge", 1.0, judge)])) as early:
        for rollout in rollouts:
            early.hand_over(rollout)
        assert wait_for(lambda: len(judge.asked) == 2)
        time.sleep(0.02)
        assert len(judge.asked) == 2
        judge.held.set()
        assert [result.value for result in early.results("judge", rollouts)] == [4.0, 4.0, 4.0]


def test_what_ends_a_run_waits_for_its_turn(make_rollout):
    """The first part in the rubric speaks first, as it does when all are asked afterwards."""
    groups = [[make_rollout("word"), make_rollout("fatal")]]
    for workers in (0, 2):
        with pytest.raises(ModelError, match="another model"):
            scored(Judge(workers), groups)

    class First:
        def score(self, rollouts):
            raise RewardError("the first part gives up")

    with pytest.raises(RewardError, match="the first part gives up"):
        handed_and_scored(Rubric([("first", 1.0, First()), ("judge", 1.0, Judge(2))]), groups)


def test_too_many_failures_stop_the_run_with_the_same_words(make_rollout):
    groups, told = [[make_rollout("late"), make_rollout("word")]], []
    for workers in (0, 2):
        with pytest.raises(RewardError) as caught:
            handed_and_scored(Rubric([("judge", 1.0, Judge(workers))]), groups)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "TimeoutError: no answer within 3 s" in told[0]


def test_an_interruption_begins_no_further_call_and_waits_for_none(make_rollout):
    judge = Judge(1)
    assert wait_for(lambda: living() == [])

    def interrupted():
        with EarlyScores(Rubric([("judge", 1.0, judge)])) as early:
            for text in ("held", "word", "word"):
                early.hand_over(make_rollout(text))
            assert wait_for(lambda: judge.asked == ["held"])
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - started < LIMIT_S / 2
    assert [thread.daemon for thread in living()] == [True]  # the call that had begun, which the end of the process does not wait for
    judge.held.set()
    assert wait_for(lambda: living() == [])
    assert judge.asked == ["held"]


def test_a_rollout_that_was_not_handed_over_is_asked_for_when_it_is_needed(make_rollout):
    judge = Judge(2)
    rubric = Rubric([("judge", 1.0, judge)])
    with EarlyScores(rubric) as early:
        (group,) = rubric.score([[make_rollout("word"), make_rollout("words")]], early=early)
    assert group.scores == (4.0, 5.0)
    assert sorted(judge.asked) == ["word", "words"]


def test_parts_that_compute_in_this_process_are_asked_afterwards():
    parts = [FormatPart(pattern="a"), LengthPart(1, 2, 4), OverlongPart(4, 1), LearnedPart.__new__(LearnedPart)]
    assert [num_early_workers(part) for part in parts] == [0, 0, 0, 0]
    assert num_early_workers(Judge(0)) == 0
    assert isinstance(Judge(0), EarlyPart)
    assert EarlyScores(Rubric([("judge", 1.0, Judge(0)), ("length", 1.0, LengthPart(1, 2, 4))])).names == frozenset()


@pytest.mark.parametrize("workers", [-1, 1.5, "two", None])
def test_a_wrong_number_of_workers_is_refused_with_the_part(workers):
    with pytest.raises(ValueError, match=r"reward part 'judge': early_workers is a whole number of at least 0, got"):
        Rubric([("judge", 1.0, Judge(workers))])


def wait_for(condition) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def living() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tether-reward-")]
