"""Answers drawn one round ahead: which weights draw what, whichever side is slower; exact resume; ends of both sides; what is refused."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace

import pytest
import torch
from pydantic import ValidationError
from small_runs import ONLINE, Crash, CrashAt, assert_same, crash_at_call, figures, make_config, resumed_after, sections_of

import tether
from tether.algorithms.experience import Experience
from tether.backends.local import LocalWorker
from tether.config import RunConfig, rl_kind
from tether.dryrun import plan_lines
from tether.errors import SamplerError
from tether.events import EventLog, read_events
from tether.maths.kl import KLEstimator
from tether.metrics import MetricSums
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy
from tether.models.resolve import resolve_model
from tether.models.snapshot import Snapshot
from tether.pulse import Stopped, beat, last_beat, stop_at_beats
from tether.rewards.rubric import Rubric
from tether.rollout.journal import JournalledSampler
from tether.rollout.local import LocalSampler
from tether.rollout.scripted import ScriptedSampler
from tether.run import ahead
from tether.run.ahead import AnswersAhead, Collected, compare_with_snapshot
from tether.run.checkpoint import CheckpointStore
from tether.run.describe import sampled_kl, warn_of_negative_kl
from tether.run.observer import Quiet
from tether.run.pipeline import run
from tether.run.recorder import Recorder
from tether.run.rl import OnlineRun, rl
from tether.run.rounds import RoundLearner
from tether.run.rows import RolloutRow, rows_of, state_of_rows
from tether.run.verify_resume import verify_resume
from tether.state import State
from tether.types import Prompt, Score

CORRECTED = {"rollouts_ahead": 1, "sampler_correction": {"mode": "token_truncate"}}
LIMIT_S = 60  # of a wait that never comes to its end


def settings_of(kind):
    return {"rollouts_ahead": 1} if kind == "online_dpo" else CORRECTED


def config_of(kind, folder, **changed):
    folder.mkdir(exist_ok=True)
    sections, _, _ = sections_of(kind, folder)
    sections["rl"]["a"] |= settings_of(kind)
    return RunConfig.model_validate(make_config(folder, **sections) | changed)


def drawing_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tether-answers")]


# -- the order of things -----------------------------------------------------------------------------------------------------


@dataclass
class Notebook:
    """A learner that learns nothing; ``during`` is called in every round."""

    policy: Policy
    config: object
    during: object = None
    rounds: list = field(default_factory=list)

    def learn(self, rows, part_weights=()):
        self.rounds.append(list(rows))
        if self.during is not None:
            self.during(len(self.rounds))
        return {}

    def state(self):
        return State()

    def restore(self, state):
        pass


@dataclass
class Teller:
    """A scripted sampler under versions, which no publish may meet while it draws. ``during`` is called when a round begins."""

    during: object = None
    version: int = 0
    drawn_by: list = field(default_factory=list)
    inside: bool = False

    def refresh(self, version):
        assert not self.inside
        self.version = version

    def generate(self, requests, sampling):
        self.inside = True
        self.drawn_by.append(self.version)
        if self.during is not None:
            self.during(len(self.drawn_by))
        yield from ScriptedSampler(lambda request, index: (10 + index,), version=self.version).generate(requests, sampling)
        self.inside = False


@dataclass(frozen=True)
class FirstToken:
    name: str = "first"

    def score(self, rollouts):
        return [Score(float(rollout.completion.token_ids[0])) for rollout in rollouts]


def play(learner, sampler, folder, part=None):
    log = EventLog(folder / "events.jsonl")
    parts = OnlineRun(learner, sampler, Rubric([("part", 1.0, part or FirstToken())]), [Prompt(f"p{i}", f"Say {i}.") for i in range(4)], 0)
    try:
        rl(parts, Recorder(log, Quiet(), "rl.test", learner.config.steps))
    finally:
        log.close()
    return [event["metrics"] for event in read_events(folder / "events.jsonl") if event["kind"] == "step"]


def grpo(steps=4, **settings):
    base = {"kind": "grpo", "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "sampling": {"max_new_tokens": 5}}
    return rl_kind("grpo").model_validate({**base, "steps": steps, "samples_per_prompt": 2, "prompts_per_step": 2, **CORRECTED, **settings})


@pytest.fixture(scope="module")
def policy():
    return Policy.load(resolve_model("tiny"))


def test_every_round_is_drawn_by_the_weights_of_one_round_earlier_and_the_log_says_so(policy, tmp_path):
    sampler = Teller()
    metrics = play(Notebook(policy, grpo(5)), sampler, tmp_path)
    assert sampler.drawn_by == [0, 0, 1, 2, 3]
    assert [m["staleness"] for m in metrics] == [0, 1, 1, 1, 1]
    assert ["draw_wait_seconds" in m for m in metrics] == [True, True, True, True, False]


def test_without_it_they_are_drawn_by_the_weights_that_are_updated(policy, tmp_path):
    sampler = Teller()
    metrics = play(Notebook(policy, grpo(3, rollouts_ahead=0)), sampler, tmp_path)
    assert sampler.drawn_by == [0, 1, 2]
    assert [m["staleness"] for m in metrics] == [0, 0, 0]
    assert not any("draw_wait_seconds" in m for m in metrics)


class Sleeper(Teller):
    """It counts its rests, and must not draw during one."""

    rests = 0
    resting = False

    def rest(self):
        self.rests += 1
        self.resting = True

    def refresh(self, version):
        super().refresh(version)
        self.resting = False

    def generate(self, requests, sampling):
        assert not self.resting
        yield from super().generate(requests, sampling)


@pytest.mark.parametrize(("rounds_ahead", "rests"), [(0, 3), (1, 0)])
@pytest.mark.parametrize("journalled", [True, False])
def test_a_sampler_rests_in_every_update_unless_it_draws_meanwhile(policy, tmp_path, rounds_ahead, rests, journalled):
    sampler = Sleeper()
    seen = []
    learner = Notebook(policy, grpo(3, rollouts_ahead=rounds_ahead), lambda _: seen.append(sampler.resting))
    play(learner, JournalledSampler(sampler, tmp_path / "journal", "settings", 4) if journalled else sampler, tmp_path)
    assert sampler.rests == rests
    assert seen == [not rounds_ahead] * 3


def test_both_sides_are_at_work_at_once(policy, tmp_path):
    """Each waits, inside its own work, for the other to have begun."""
    learning, drawing = ([threading.Event() for _ in range(6)] for _ in range(2))

    def while_drawing(number):
        drawing[number].set()
        assert number == 1 or learning[number - 1].wait(LIMIT_S)

    def while_learning(number):
        learning[number].set()
        assert number == 4 or drawing[number + 1].wait(LIMIT_S)

    assert len(play(Notebook(policy, grpo(4), while_learning), Teller(while_drawing), tmp_path)) == 4


def test_the_answers_of_a_round_are_those_of_its_prompts_whoever_draws_them(policy, tmp_path):
    rounds = []
    for name, rounds_ahead in (("now", 0), ("ahead", 1)):
        (tmp_path / name).mkdir()
        learner = Notebook(policy, grpo(4, rollouts_ahead=rounds_ahead))
        play(learner, Teller(), tmp_path / name)
        rounds.append([[(row.group, row.response_ids, row.score) for row in told] for told in learner.rounds])
    assert rounds[0] == rounds[1]


def test_a_thread_that_draws_uses_as_many_threads_of_torch_as_the_run(policy, tmp_path):
    counts = set()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        play(Notebook(policy, grpo(2)), Teller(lambda number: counts.add(torch.get_num_threads())), tmp_path)
    finally:
        torch.set_num_threads(before)
    assert counts == {1}


# -- who is first -----------------------------------------------------------------------------------------------------------


def waits(patch, owner, name, until):
    """A method begins when ``until()`` holds."""
    real = getattr(owner, name)

    def late(self, *args, **kwargs):
        end = time.monotonic() + LIMIT_S
        while not until() and time.monotonic() < end:
            time.sleep(0.001)
        assert until()
        return real(self, *args, **kwargs)

    patch.setattr(owner, name, late)


def update_first(patch):
    """Nothing of a round is drawn before the update beside it is applied."""
    rounds = []
    real = RoundLearner.learn
    patch.setattr(RoundLearner, "learn", lambda self, *args: (real(self, *args), rounds.append(1))[0])

    def due():
        thread = threading.current_thread().name
        return not thread.startswith("tether-answers") or len(rounds) >= int(thread.removeprefix("tether-answers-")) - 1

    waits(patch, LocalSampler, "generate", due)


def drawing_first(patch):
    """Nothing is updated before the answers beside it are drawn."""
    waits(patch, LocalWorker, "accumulate", lambda: drawing_threads() == [])


def in_turns(patch):
    """Every token and every pass takes its time."""
    for owner, name in ((LocalSampler, "_draw"), (LocalWorker, "accumulate")):
        ready = iter(range(1 << 20))
        waits(patch, owner, name, lambda ready=ready: next(ready) % 8 >= 6)


ORDERS = (update_first, drawing_first)


# -- the weights that draw ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lora"), [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, LoraSpec(4, 8.0))])
def test_a_snapshot_moves_when_it_is_taken_and_never_else(dtype, lora):
    policy = Policy.load(resolve_model("tiny"), lora=lora)
    snapshot = Snapshot(policy, dtype)
    sampler = LocalSampler(snapshot.policy.model, policy.format.eos_ids, policy.format.pad_id, dtype, snapshot=snapshot)
    rows, answers = [(5, 6, 7)], [(8, 9, 10)]
    before = sampler.forced_logprobs(rows, answers).clone()
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.05 * weight.requires_grad
    assert torch.equal(sampler.forced_logprobs(rows, answers), before)
    assert max(sampler.copy_gaps().values()) > 0
    sampler.refresh(1)
    assert set(sampler.copy_gaps().values()) == {0.0}
    assert not torch.equal(sampler.forced_logprobs(rows, answers), before)
    assert not any(weight.requires_grad for weight in snapshot.policy.parameters())
    shared = {id(weight) for weight in snapshot.policy.parameters()} & {id(weight) for weight in policy.parameters()}
    assert bool(shared) == (lora is not None)
    assert all(weight.dtype == torch.float32 for weight in policy.parameters())


def learns(folder, compute=None, kind="grpo", **settings):
    """Rounds of a tiny policy with large steps; the metrics of each."""
    part = type("Ids", (), {"name": "ids", "score": lambda self, rollouts: [Score(sum(r.completion.token_ids) / 500) for r in rollouts]})()
    tether.rl(
        Policy.load(resolve_model("tiny")), ["one", "two"], [part], algorithm=kind, log=folder / "log.jsonl", steps=4, prompts_per_step=2,
        samples_per_prompt=3, sampling={"max_new_tokens": 5}, optim={"learning_rate": 1e-2}, **settings_of(kind),
        compute={"dtype": "float32", "threads": 1, "device": "cpu", **(compute or {})}, **settings,
    )  # fmt: skip
    return [event["metrics"] for event in read_events(folder / "log.jsonl") if event["kind"] == "step"]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_sampler_and_trainer_are_compared_by_the_weights_that_drew(order, tmp_path, monkeypatch):
    order(monkeypatch)
    metrics = learns(tmp_path)
    assert all(m["sampler_gap_max"] < 1e-4 for m in metrics)  # the weights moved by more, as the next line shows
    assert all(m["sampler_ess"] < 1 - 1e-3 for m in metrics[1:])
    assert all(m["publish_gap"] < 1e-4 for m in metrics)
    assert all(m["first_ratio_error"] == 0 for m in metrics)


def test_a_sampler_that_draws_from_another_distribution_is_still_seen(tmp_path, monkeypatch):
    real = LocalSampler._draw

    def sharper(self, rows, logits_RV, sampling):
        real(self, rows, 1.5 * logits_RV, sampling)

    monkeypatch.setattr(LocalSampler, "_draw", sharper)
    assert all(m["sampler_gap_mean"] > 0.05 for m in learns(tmp_path))


@pytest.mark.parametrize(("room", "compared"), [(8, 8), (3, 2), (0, 0)])
def test_a_comparison_that_does_not_fit_beside_the_update_looks_at_fewer_answers(room, compared, policy, caplog):
    class Tight:
        def __init__(self):
            self.policy, self.seen = policy, []

        def logprobs(self, texts, temperature):
            if len(texts.lengths()) > room:
                raise torch.OutOfMemoryError
            self.seen.append(len(texts.lengths()))
            return torch.zeros(texts.token_ids_BT.shape)

    snapshot, metrics = Tight(), MetricSums()
    rows = [RolloutRow((5,), (6, 7), (-1.0 - n, -1.0 - n), 0.0, "p", True) for n in range(8)]
    compare_with_snapshot(metrics, rows, snapshot, 1.0)
    assert snapshot.seen == [compared][: bool(compared)]
    assert metrics.means().get("sampler_gap_max") == (compared or None)
    assert ("not even one of them fits" in caplog.text) == (not compared)


def test_a_reward_that_hangs_when_the_run_stops_is_left_with_a_warning(policy, tmp_path, monkeypatch, caplog):
    asked, free = threading.Event(), threading.Event()

    class Hangs(FirstToken):
        def score(self, rollouts):
            if threading.current_thread().name.startswith("tether-answers"):
                asked.set()
                free.wait(LIMIT_S)
            return super().score(rollouts)

    def breaks(number):
        assert asked.wait(LIMIT_S)
        raise Broken

    monkeypatch.setattr(ahead, "_PATIENCE_S", 0.01)
    with pytest.raises(Broken):
        play(Notebook(policy, grpo(4), breaks), Teller(), tmp_path, Hangs())
    free.set()
    assert "answers of step 2 did not stop" in caplog.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_publish_that_was_skipped_stops_the_run(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(Snapshot, "take", lambda self: None)
    with pytest.raises(SamplerError, match="weights of version 1"):
        learns(tmp_path, {"dtype": dtype})


# -- a function of its configuration -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run of a kind that was left alone, made once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = run(config_of(kind, tmp_path_factory.mktemp("unbroken"))).folder
        return made[kind]

    return of


@pytest.mark.parametrize("order", [*ORDERS, pytest.param(in_turns, marks=pytest.mark.slow)])
def test_no_bit_depends_on_which_side_is_slower(unbroken, order, tmp_path, monkeypatch):
    order(monkeypatch)
    assert_same(unbroken("grpo"), run(config_of("grpo", tmp_path)).folder, "rl.a")


@pytest.mark.slow
@pytest.mark.parametrize("order", [*ORDERS, in_turns])
@pytest.mark.parametrize("kind", ["ppo", "remax", "online_dpo"])
def test_nor_in_bfloat16_with_a_reward_model_that_is_asked_beside_the_update(kind, order, tmp_path):
    """Leaving autocast in one thread empties the casts of all threads."""
    folders = []
    for name in ("plain", "late"):
        (tmp_path / name).mkdir()
        sections = sections_of(kind, tmp_path / name)[0] | sections_of("reward_model", tmp_path / name)[0]
        sections["rl"]["a"] |= settings_of(kind) | {"rewards": [{"kind": "learned"}]}
        compute = {"dtype": "bfloat16", "threads": 1, "token_budget": 64}
        config = RunConfig.model_validate(make_config(tmp_path / name, **sections) | {"compute": compute})
        with pytest.MonkeyPatch.context() as patch:
            if name == "late":
                order(patch)
            folders.append(run(config).folder)
    assert_same(*folders, "rl.a")


def test_after_a_crash_it_goes_on_as_if_nothing_had_happened(unbroken, tmp_path):
    config = config_of("grpo", tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt("rl.a", 4))
    kept = CheckpointStore(config.folder / "checkpoints" / "rl.a").latest().load().part("answers_ahead")
    assert len(kept.values["rows"]["lengths"]) == 12  # the answers of step 3, drawn by the weights of step 1
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert_same(unbroken("grpo"), folder, "rl.a")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(ONLINE) - {"grpo"}))
def test_so_does_every_other_algorithm(unbroken, kind, tmp_path):
    config = config_of(kind, tmp_path)
    with pytest.raises(Crash):
        run(config, observer=CrashAt("rl.a", 4))
    folder = run(config).folder
    assert resumed_after(folder) == [2]
    assert_same(unbroken(kind), folder, "rl.a")


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(LocalWorker, "accumulate", 30), pytest.param(LocalSampler, "_draw", 21, marks=pytest.mark.slow)],
    ids=["update", "drawing"],
)
def test_so_it_does_when_either_side_was_at_work(unbroken, owner, name, number, tmp_path):
    """Rounds of some eight passes and six tokens: in the update of the fourth, or while its answers are drawn."""
    config = config_of("grpo", tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        crash_at_call(patch, owner, name, number)
        with pytest.raises(Crash):
            run(config)
    assert drawing_threads() == []
    folder = run(config).folder
    assert resumed_after(folder)
    assert_same(unbroken("grpo"), folder, "rl.a")


@pytest.mark.slow
def test_what_was_drawn_of_a_round_before_the_crash_is_not_drawn_again(tmp_path, monkeypatch):
    """Chunks of one prompt, four a round. The crash comes in the third chunk of round 4, which is drawn beside round 3."""
    drawn = []
    real = LocalSampler.generate

    def generate(self, requests, sampling):
        drawn.append((self.version, [request.prompt_id for request in requests]))
        if len(drawn) == crash_at:
            raise Crash
        return real(self, requests, sampling)

    monkeypatch.setattr(LocalSampler, "generate", generate)

    def config(name):
        made = config_of("grpo", tmp_path, name=name).model_dump(mode="json", exclude_unset=True)
        made["rl"]["a"]["sampling"]["max_rows"] = 1
        return RunConfig.model_validate(made)

    crash_at = 0
    whole = run(config("whole")).folder
    everything = list(drawn)
    assert [version for version, _ in everything] == [0] * 8 + [1] * 4 + [2] * 4 + [3] * 4
    drawn.clear()
    crash_at = 3 * 4 + 3
    with pytest.raises(Crash):
        run(config("broken"))
    drawn.clear()
    crash_at = 0
    folder = run(config("broken")).folder
    assert drawn == everything[3 * 4 + 2 :]
    assert resumed_after(folder) == [2]
    assert_same(whole, folder, "rl.a")


@pytest.mark.slow
def test_verify_resume_finds_it_exact(tmp_path):
    verdict = verify_resume(config_of("online_dpo", tmp_path), say=lambda text: None)
    assert verdict.ok, verdict


def test_a_round_that_waits_is_kept_to_the_last_bit():
    rows = [
        RolloutRow((1, 2), (3,), (-0.1,), 0.1 + 0.2, "a", True, None, (1.0, math.nan)),
        RolloutRow((4,), (5, 6), (-1e-17, -3.5), -1.0, "b\x1f2", False, 0.5, ()),
    ]
    assert repr(rows_of(state_of_rows(rows))) == repr(rows)
    metrics = MetricSums()
    metrics.add("reward", 3.0, 7.0)
    metrics.add("generate_seconds", 2.0)
    answers = AnswersAhead(lambda step: Collected(rows, [{"reward": math.nan}], metrics), 1, 3)
    assert answers.state() == State()
    answers.take(1)
    answers.settle()
    other = AnswersAhead(lambda step: pytest.fail("drawn again"), 0, 3)
    other.restore(answers.state())
    told = other.take(2)
    assert repr(told.rows) == repr(rows)
    assert told.metrics.sums() == {"reward": (3.0, 7.0)}  # times are those that passed
    assert math.isnan(told.samples[0]["reward"])


# -- ends --------------------------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def test_a_failure_while_drawing_ends_both_and_names_the_side(policy, tmp_path):
    def third(number):
        if number == 3:
            raise SamplerError("no more")

    with pytest.raises(SamplerError, match="no more") as found:
        play(Notebook(policy, grpo(4)), Teller(third), tmp_path)
    (note,) = found.value.__notes__
    assert "the answers of step 3, beside the update of step 2" in note
    assert drawing_threads() == []
    logged = [event["step"] for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "step"]
    assert logged == [1]  # step 2 was learned, and without the answers of step 3 there is nothing that could be gone on from


def test_the_command_line_shows_the_note(tmp_path, monkeypatch, capsys):
    from tether import cli
    from tether.run import pipeline

    def broken(*args, **kwargs):
        error = SamplerError("no more")
        error.add_note("while it rained")
        raise error

    file = tmp_path / "config.json"
    file.write_text(config_of("grpo", tmp_path).model_dump_json(exclude_unset=True))
    monkeypatch.setattr(pipeline, "run", broken)
    assert cli.main(["run", str(file), "--quiet"]) == 1
    assert "no more\nwhile it rained" in capsys.readouterr().err


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_a_failure_of_the_update_ends_the_drawing_at_its_next_token(policy, error, tmp_path):
    drawing, ended = threading.Event(), threading.Event()

    def draws_for_ever(number):
        if number == 1:
            return
        drawing.set()
        end = time.monotonic() + LIMIT_S
        try:
            while time.monotonic() < end:
                beat("sampling")
        except Stopped:
            ended.set()
            raise

    def breaks(number):
        assert drawing.wait(LIMIT_S)
        raise error

    with pytest.raises(error):
        play(Notebook(policy, grpo(4), breaks), Teller(draws_for_ever), tmp_path)
    assert ended.is_set()
    assert drawing_threads() == []


def test_a_beat_stops_the_context_that_was_told_to_and_no_other():
    told, seen = threading.Event(), []

    def work():
        stop_at_beats(told)
        beat("before")
        told.set()
        try:
            beat("after")
        except Stopped:
            seen.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["stopped"]
    beat("here")
    assert last_beat().part == "here"


def test_a_run_that_waits_for_answers_says_so_to_the_watchdog(policy, tmp_path):
    learned = threading.Event()

    def hangs(number):
        if number == 2:
            assert learned.wait(LIMIT_S)
            end = time.monotonic() + LIMIT_S
            while last_beat().part != "the answers of step 2, drawn ahead" and time.monotonic() < end:
                time.sleep(0.005)
            assert last_beat().part == "the answers of step 2, drawn ahead"

    play(Notebook(policy, grpo(2), lambda number: learned.set()), Teller(hangs), tmp_path)


# -- numbers of stale answers ------------------------------------------------------------------------------------------------


def stale(rows=1 << 17):
    """One token of three: drawn by the reference, read by a policy that moved. KL(old || ref) and KL(ref || old), and the experience."""
    ref = torch.log_softmax(torch.tensor([0.0, 0.3, -0.2]), -1)
    old = torch.log_softmax(torch.tensor([0.8, -0.3, -0.2]), -1)
    tokens = torch.multinomial(ref.exp().expand(rows, 3), 1, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(rows, 1, dtype=torch.bool)
    told = Experience(mask, torch.zeros(rows), torch.arange(rows), mask[:, 0], old[tokens], ref[tokens], drawn_logprobs_BT=ref[tokens])
    exact = float((old.exp() * (old - ref)).sum()), float((ref.exp() * (ref - old)).sum())
    return exact, told


def test_the_kl_in_the_log_is_that_of_the_policy_and_its_warning_is_no_false_one():
    (exact, reverse), told = stale()
    for estimator in (KLEstimator.K1, KLEstimator.K3):
        assert sampled_kl(told, estimator).token_mean_nats == pytest.approx(exact, abs=0.02)
    unweighted = replace(told, drawn_logprobs_BT=None)
    assert sampled_kl(unweighted).token_mean_nats == pytest.approx(-reverse, abs=0.02)
    assert warn_of_negative_kl(unweighted)
    assert not warn_of_negative_kl(told)


def test_the_controller_of_beta_goes_by_it(tmp_path):
    """Six answers, horizon 100: beta moves by .2 x 6 % of itself, up from the second round on. The plain mean of its k1 is below 0."""
    metrics = learns(tmp_path, kind="ppo", kl={"beta": 0.1, "target": 0.02, "horizon": 100})
    assert [m["kl_k1_sequence"] > 0.02 for m in metrics] == [False, True, True, True]
    assert [m["beta"] for m in metrics] == pytest.approx([0.1, 0.1 * 0.988, 0.1 * 0.988 * 1.012, 0.1 * 0.988 * 1.012**2])


# -- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in ONLINE if kind != "online_dpo"])
def test_without_a_correction_it_is_refused_with_the_remedy(kind):
    data = {"kind": kind, "prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "rollouts_ahead": 1}
    for correction in ({}, {"sampler_correction": "off"}, {"sampler_correction": {"sequence_mask_delta": 0.1}}):
        with pytest.raises(ValidationError, match=r"one round older.*sampler_correction = \{mode = \"token_truncate\", high = 2.0\}"):
            rl_kind(kind).model_validate({**data, **correction})
    assert rl_kind(kind).model_validate({**data, **CORRECTED}).rollouts_ahead == 1


def test_further_ahead_than_one_round_is_refused():
    with pytest.raises(ValidationError, match="rollouts_ahead"):
        grpo(rollouts_ahead=2)


@pytest.mark.parametrize("kind", ["grpo", "online_dpo"])
def test_an_update_on_ids_needs_what_the_sampler_reported(kind):
    settings = {"samples_per_prompt": 2, "compute": {"dtype": "float32", "threads": 1}, **settings_of(kind)}
    updater = tether.PolicyUpdater(Policy.load(resolve_model("tiny")), kind, settings=settings)
    answers = [[5, 6], [5, 6]], [[7, 8], [9, 8]], [0.0, 1.0]
    with pytest.raises(ValueError, match=r"row 0 .* has no sampler log-probabilities, and with rollouts_ahead = 1"):
        updater.update(*answers)
    told = updater.update(*answers, sampler_logprobs=[[-5.5, -6.5], [-6.0, -6.0]])
    assert "sampler_gap_mean" not in told  # nobody here has the weights that drew
    assert math.isfinite(told["kl_k1_sequence"])


def test_the_plan_says_it(tmp_path):
    (told,) = [line for line in plan_lines(config_of("grpo", tmp_path)) if "beside the update" in line]
    assert "weights one round older" in told
    assert "sampler_correction token_truncate, at most 2" in told
    assert "4 bytes each" in told
    assert not any("beside the update" in line for line in plan_lines(RunConfig.model_validate(
        make_config(tmp_path, **sections_of("grpo", tmp_path)[0]))))  # fmt: skip


# -- learning ----------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_run_are_logged_under_registered_names(unbroken):
    steps = [entry for entry in figures(unbroken("grpo")) if isinstance(entry[2], dict)]
    assert [entry[2]["staleness"] for entry in steps] == [0, 1, 1, 1, 1]
