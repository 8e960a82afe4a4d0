"""What a run shows: live, plain or nothing."""

from __future__ import annotations

import inspect
import io

import pytest
from rich.console import Console

from tether.progress import LiveProgress, PlainProgress, QuietProgress, choose_progress, headline
from tether.run.observer import Observer

METRICS = {
    "reward": 0.5,
    "kl_k1_sequence": 1.25,
    "kl_k3_token": 0.01,
    "tokens_per_second": 1234.5,
    "loss": 3.0,
}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def _plain() -> tuple[PlainProgress, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return PlainProgress(out, clock=clock), out, clock


def test_headline_shows_reward_kl_with_unit_and_speed():
    assert headline(METRICS) == "reward 0.5  KL 1.25 nats per sequence  1,234 tokens/s"


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"loss": 1.5, "token_accuracy": 0.25}, "loss 1.5  accuracy 0.25"),
        ({"loss": 0.69, "pair_accuracy": 0.5}, "accuracy 0.5"),
        ({"reward": 1.0, "kl_k3_token": 0.002}, "reward 1  KL 0.002 nats per token"),
        ({"reward": float("nan")}, "reward nan"),
        ({}, ""),
    ],
)
def test_headline_takes_what_the_stage_reports(metrics: dict[str, float], text: str):
    assert headline(metrics) == text


def test_plain_line_says_stage_step_numbers_and_time_left():
    progress, out, clock = _plain()
    progress.stage_started("rl.ppo", 4)
    clock.now = 30.0
    progress.step("rl.ppo", 1, METRICS)
    assert out.getvalue().splitlines() == [
        "rl.ppo: 4 steps",
        "rl.ppo 1/4  reward 0.5  KL 1.25 nats per sequence  1,234 tokens/s  ETA 1 min 30 s",
    ]


def test_time_left_of_a_resumed_stage_counts_its_own_steps_only():
    progress, out, clock = _plain()
    progress.stage_started("rl.ppo", 10)
    clock.now = 5.0
    progress.step("rl.ppo", 8, {"reward": 1.0})
    assert out.getvalue().splitlines()[-1].endswith("ETA 10 s")


def test_plain_lines_keep_their_distance_but_the_last_step_shows():
    progress, out, clock = _plain()
    progress.stage_started("sft", 50)
    for step in range(1, 51):
        clock.now = step * 0.1
        progress.step("sft", step, {"loss": 1.0})
    shown = [line.split()[1] for line in out.getvalue().splitlines()[1:]]
    assert shown[0] == "1/50"
    assert shown[-1] == "50/50"
    assert 5 <= len(shown) <= 7


def test_stage_without_known_length_shows_neither_total_nor_time_left():
    progress, out, _ = _plain()
    progress.stage_started("evaluate.start", 0)
    progress.step("evaluate.start", 1, {})
    progress.step("evaluate.start", 2, {})
    assert out.getvalue().splitlines() == ["evaluate.start", "evaluate.start 1"]


def test_plain_end_of_stage_shows_flat_values_and_leaves_nested_ones():
    progress, out, clock = _plain()
    progress.stage_started("reward_model", 1)
    clock.now = 61.0
    progress.stage_finished("reward_model", {"accuracy": 0.71234, "interval": [0.6, 0.8], "pairs": 40})
    assert out.getvalue().splitlines()[-1] == "reward_model: done in 1 min 01 s: accuracy 0.712, pairs 40"


def test_live_display_shows_the_step_and_survives_markup():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with LiveProgress(console, clock=Clock()) as progress:
        progress.stage_started("rl.grpo", 3)
        progress.step("rl.grpo", 2, METRICS)
        progress.message("model said [/bold] and [red]")
        progress.stage_finished("rl.grpo", {"reward": 0.5})
    text = out.getvalue()
    assert "2/3" in text
    assert "KL 1.25 nats per sequence" in text
    assert "model said [/bold] and [red]" in text
    assert "rl.grpo: done in 0 s: reward 0.5" in text
    assert "\x1b[?25h" in text  # the cursor is visible again


def test_live_display_leaves_the_terminal_in_order_after_ctrl_c():
    out = io.StringIO()
    progress = LiveProgress(Console(file=out, force_terminal=True))
    with pytest.raises(KeyboardInterrupt):
        _stop_in_the_middle(progress)
    assert "\x1b[?25h" in out.getvalue()


def _stop_in_the_middle(progress: LiveProgress) -> None:
    with progress:
        progress.stage_started("sft", 3)
        raise KeyboardInterrupt


def test_choice_by_flag_then_by_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(choose_progress(True, Terminal()), QuietProgress)
    assert isinstance(choose_progress(False, io.StringIO()), PlainProgress)
    assert isinstance(choose_progress(False, Terminal()), LiveProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_progress(False, Terminal()), PlainProgress)


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]):
    with QuietProgress() as progress:
        progress.stage_started("sft", 1)
        progress.step("sft", 1, {"loss": 1.0})
        progress.stage_finished("sft", {})
        progress.message("hello")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [QuietProgress, PlainProgress, LiveProgress])
@pytest.mark.parametrize("method", ["stage_started", "step", "stage_finished", "message"])
def test_every_display_is_an_observer(kind: type, method: str):
    wanted = inspect.signature(getattr(Observer, method)).parameters
    assert list(inspect.signature(getattr(kind, method)).parameters) == list(wanted)
