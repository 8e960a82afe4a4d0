"""Direct preference stages on the tiny model: exact starts, splits that change nothing, learning, the tether, displacement, a whole run."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import tether
from tether import cli
from tether.backends.compute import Compute
from tether.config import DirectConfig, RunConfig, parse_config
from tether.data.batches import pad_examples
from tether.data.judged import judged_answers, judged_pairs, with_mismatched
from tether.errors import ConfigError, DataError
from tether.events import EventLog, read_events
from tether.maths.masked import masked_mean
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.tiny import make_tiny
from tether.records import feedback_from_row, read_comparisons, read_feedback, write_jsonl
from tether.records.texts import prompt_key
from tether.report.page import write_report
from tether.run.direct import num_steps, start_sums, train_direct, unit_sums
from tether.run.displacement import DisplacementWatch, displacement
from tether.run.keeper import NO_KEEPER
from tether.run.pipeline import run
from tether.run.recorder import Recorder
from tether.state import State
from tether.types import Comparison, Feedback

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "dpo.toml"
FLOAT32 = Compute(torch.device("cpu"), torch.float32, 4096)
PAIRS = ["dpo", "cdpo", "robust", "ipo", "ipo_avg", "hinge", "orpo", "simpo"]
ROWS = [{"prompt": f"Say {i}.", "chosen": f" yes {i}" + " please" * (i % 3), "rejected": " no" * (1 + i % 4)} for i in range(12)]


class Watcher:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.steps, self.messages = [], []

    def stage_started(self, stage, num_steps): ...
    def stage_finished(self, stage, summary): ...

    def step(self, stage, step, metrics):
        self.steps.append(dict(metrics))

    def message(self, text):
        self.messages.append(text)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model")


def units_of(policy, kind="dpo", rows=ROWS):
    if kind == "kto":
        units, _ = judged_answers(read_feedback(rows, "rows"), policy.format, 64, "rows")
        return with_mismatched(units, 64, "rows", 0)
    return judged_pairs(read_comparisons(rows, "rows"), policy.format, 64, "rows")[0]


class MemoryKeeper:
    """Keeps the state after one step; a second one goes on from it."""

    def __init__(self, at=None, state=None):
        self.at, self.kept, self.parts = at, state, {}

    def attach(self, parts):
        self.parts = parts
        if self.at is None:
            for name, part in parts.items():
                part.restore(self.kept[1].part(name))
        return 0 if self.at is not None else self.kept[0]

    def after_step(self, step):
        if step == self.at:
            state = State.joined({name: part.state() for name, part in self.parts.items()})
            values = json.loads(json.dumps(state.values))
            self.kept = (step, State({name: tensor.clone() for name, tensor in state.tensors.items()}, values))


def train(policy, tmp_path, kind="dpo", compute=FLOAT32, rows=ROWS, keeper=NO_KEEPER, **settings):
    defaults = {"kind": kind, "data": {"path": "p"}, "batch_size": 6, "optim": {"learning_rate": 1e-3, "schedule": "constant"}}
    config = DirectConfig.model_validate({**defaults, **settings})
    units, watcher = units_of(policy, kind, rows), Watcher()
    log = EventLog(tmp_path / "events.jsonl")
    recorder = Recorder(log, watcher, "direct.x", num_steps(len(units), config))
    train_direct(policy, units, None, config, compute, recorder, 0, keeper)
    log.close()
    return watcher


def weights(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.parameters()])


# -- the start ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dpo", "cdpo", "ipo", "hinge", "kto"])
def test_before_the_first_update_implied_rewards_are_exactly_zero(tiny_folder, tmp_path, kind):
    first = train(Policy.load(tiny_folder), tmp_path, kind).steps[0]
    assert first["implied_reward_chosen"] == first["implied_margin"] == first["chosen_logprob"] == first["rejected_logprob"] == 0
    assert first["implied_accuracy"] == 0.5
    assert first.get("kto_z0", 0) == 0


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_what_is_computed_before_is_what_a_frozen_copy_says_later(tiny_folder, tmp_path, kind):
    policy = Policy.load(tiny_folder)
    units, reference = units_of(policy, kind), Reference.frozen_copy(policy)
    before = start_sums(policy, units, 5, FLOAT32, seed=3)
    train(policy, tmp_path, kind)
    later = unit_sums(reference._policy, units, FLOAT32)
    assert torch.allclose(before.first_N, later.first_N, atol=1e-4)
    assert torch.allclose(before.second_N, later.second_N, atol=1e-4)
    assert not torch.allclose(before.first_N, unit_sums(policy, units, FLOAT32).first_N, atol=0.1)


@pytest.mark.parametrize("kind", ["dpo", "kto", "simpo"])
def test_case_D7_the_token_budget_changes_nothing(tiny_folder, tmp_path, kind):
    after = []
    for budget in (16, 90, 4096):
        policy = Policy.load(tiny_folder)
        settings = {"optim": {"learning_rate": 1e-4, "eps": 1e-3}, "sft_coef": 0.1 if kind == "dpo" else 0}
        train(policy, tmp_path, kind, replace(FLOAT32, token_budget=budget), **settings)
        after.append(weights(policy))
    assert torch.allclose(after[0], after[2], atol=1e-6)
    assert torch.allclose(after[1], after[2], atol=1e-6)


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_a_training_that_is_resumed_goes_on_bit_for_bit(tiny_folder, tmp_path, kind):
    whole, first = Policy.load(tiny_folder), MemoryKeeper(at=3)
    steps = train(whole, tmp_path, kind, epochs=3, keeper=first).steps
    resumed = Policy.load(tiny_folder)
    again = train(resumed, tmp_path, kind, epochs=3, keeper=MemoryKeeper(state=first.kept)).steps
    timed = {"tokens_per_second"}
    assert [{k: v for k, v in s.items() if k not in timed} for s in steps[3:]] == [
        {k: v for k, v in s.items() if k not in timed} for s in again
    ]
    assert torch.equal(weights(whole), weights(resumed))


def test_lora_adapters_train_from_the_start(tiny_folder, tmp_path):
    pytest.importorskip("peft")
    policy = Policy.load(tiny_folder, lora=LoraSpec(4, 8.0, ("q_proj", "v_proj")))
    steps = train(policy, tmp_path, epochs=6, optim={"learning_rate": 1e-2, "schedule": "constant"}).steps
    assert steps[0]["implied_margin"] == 0
    assert steps[-1]["implied_margin"] > 0.05


# -- learning ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*PAIRS, "kto"])
def test_every_kind_learns_the_preference(tiny_folder, tmp_path, kind):
    steps = train(Policy.load(tiny_folder), tmp_path, kind, epochs=4).steps
    margins = [step["implied_margin"] for step in steps if "implied_margin" in step]
    assert steps[-1]["implied_accuracy"] >= 0.8
    assert margins[-1] > margins[0]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(step["skipped_steps"] == 0 for step in steps)


@pytest.mark.parametrize(("kind", "weak", "strong"), [("dpo", 0.05, 2.0), ("ipo", 0.05, 2.0), ("ipo_avg", 0.5, 20.0), ("kto", 0.05, 2.0)])
def test_a_stronger_tether_holds_the_policy_nearer_to_the_start(tiny_folder, tmp_path, kind, weak, strong):
    distance = {}
    for beta in (weak, strong):
        policy = Policy.load(tiny_folder)
        start = unit_sums(policy, units_of(policy), FLOAT32)
        train(policy, tmp_path, kind, beta=beta, epochs=10)
        end = unit_sums(policy, units_of(policy), FLOAT32)
        distance[beta] = float((end.first_N - start.first_N).abs().mean() + (end.second_N - start.second_N).abs().mean())
    assert 0 < distance[strong] < 0.7 * distance[weak]


def test_the_cross_entropy_term_keeps_chosen_answers_likely(tiny_folder, tmp_path):
    final = {c: train(Policy.load(tiny_folder), tmp_path, epochs=4, sft_coef=c).steps[-1]["chosen_logprob"] for c in (0.0, 2.0)}
    assert final[2.0] > final[0.0] + 0.5


# -- judged answers ----------------------------------------------------------------------------------------------------------


def test_mismatched_answers_come_from_other_prompts_and_keep_their_tokens(tiny_folder):
    policy = Policy.load(tiny_folder)
    units = units_of(policy, "kto")
    texts = [policy.format.decode(row.token_ids) for row in units.second]
    assert len(units) == 2 * len(ROWS)
    for row, own, key in zip(units.second, units.first, units.keys, strict=True):
        prompt = own.token_ids[: own.response_mask.index(True)]
        assert row.token_ids[: len(prompt)] == prompt
        assert not any(row.response_mask[: len(prompt)])
        assert row.num_live >= 1
        assert key in {prompt_key(r["prompt"]) for r in ROWS}
    assert len(set(texts)) > 1
    one = [{"prompt": "a", "chosen": " b", "rejected": " c"}]
    with pytest.raises(DataError, match="all answers are to one prompt"):
        units_of(policy, "kto", one)


def test_rows_of_feedback_are_read_and_refused_by_name():
    assert feedback_from_row({"prompt": "a", "completion": " b", "label": True}) == (Feedback("a", " b", True),)
    assert [one.liked for one in feedback_from_row({"prompt": "a", "chosen": " b", "rejected": " c"})] == [True, False]
    rows = [{"prompt": "a", "completion": " b", "label": "good"}, {"prompt": "a", "completion": " b"}]
    with pytest.raises(DataError) as caught:
        read_feedback(rows, "f")
    assert "must be true (liked) or false" in str(caught.value)
    assert "`label` is missing" in str(caught.value)


def test_kto_needs_both_labels_to_train(tiny_folder):
    rows = [{"prompt": f"Say {i}", "completion": " yes", "label": True} for i in range(4)]
    with pytest.raises(DataError, match="all 4 answers to train on are liked"):
        tether.dpo(Policy.load(tiny_folder), rows, kind="kto", held_out_share=0, compute={"threads": 1})


# -- displacement ------------------------------------------------------------------------------------------------------------


def curve(slope, noise, count=20, seed=0):
    generator = random.Random(seed)
    return [slope * i + generator.gauss(0, noise) for i in range(count)]


def test_displacement_is_seen_when_chosen_falls_while_the_margin_rises_and_only_then():
    falling, rising = curve(-0.3, 0.3), curve(0.05, 0.02, seed=1)
    found = displacement(falling, rising)
    assert found is not None
    assert found.fall == pytest.approx(0.3 * 19, rel=0.2)
    assert "sft_coef" in str(found)
    assert displacement(curve(0.3, 0.3), rising) is None  # healthy: both rise
    assert displacement(falling, curve(-0.05, 0.02)) is None  # the margin falls, too: another illness
    assert displacement(curve(0.0, 1.0), rising) is None  # noise
    assert displacement(curve(-0.001, 0.0), rising) is None  # certain, and too small to matter
    assert displacement([5 + x for x in curve(-0.1, 0.01)], rising) is None  # still more likely than at the start
    assert displacement(falling[:6], rising[:6]) is None  # too few points
    assert displacement([float("nan"), *falling], [0.0, *rising]) is not None  # a step without that side is left out


def test_displacement_is_said_once_and_survives_a_restart():
    falling, rising = curve(-0.5, 0.1), curve(0.1, 0.01)
    watch, said = DisplacementWatch(), 0
    for step, (c, m) in enumerate(zip(falling, rising, strict=True)):
        said += watch.see(c, m) is not None
        if step == 9:
            state = json.loads(json.dumps(watch.state().values))
            watch = DisplacementWatch()
            watch.restore(replace(watch.state(), values=state))
    assert said == 1


def test_a_training_that_displaces_warns_in_the_log_and_a_healthy_one_does_not(tiny_folder, tmp_path):
    """Chosen and rejected answers that share nearly all tokens, on a policy that was first fitted to the chosen ones."""
    healthy = train(Policy.load(tiny_folder), tmp_path, epochs=8)
    assert not [text for text in healthy.messages if "displacement" in text]
    shared = " the sea and the sun and the stars" * 2
    rows = [{"prompt": f"Say {i}.", "chosen": shared + " yes", "rejected": shared + " no"} for i in range(12)]
    policy = Policy.load(tiny_folder)
    batch = pad_examples(units_of(policy, rows=rows).first, policy.format.pad_id)
    fit = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(40):
        (-masked_mean(policy.forward_response(batch, 1.0).logprobs_BT, batch.response_mask_BT)).backward()
        fit.step()
        fit.zero_grad()
    (tmp_path / "events.jsonl").unlink()
    shown = train(policy, tmp_path, rows=rows, epochs=12, beta=0.5, optim={"learning_rate": 1e-3, "schedule": "constant"})
    assert shown.steps[-1]["chosen_logprob"] < -1
    warnings = [event for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "warning"]
    assert [event["name"] for event in warnings] == ["displacement"]
    assert [text for text in shown.messages if "displacement" in text] == [f"WARNING: direct.x: {warnings[0]['text']}"]


# -- configuration, Python, whole runs ---------------------------------------------------------------------------------------


BASE = '[direct.d]\ndata.path = "pairs.jsonl"\n'


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["direct.d.label_smoothing=0.1"], "label_smoothing has no effect with kind = 'dpo'"),
        (["direct.d.gamma=1"], "gamma has no effect with kind = 'dpo'"),
        (["direct.d.kind=simpo", "direct.d.kto_weights=[1, 2]"], "kto_weights has no effect with kind = 'simpo'"),
        (["direct.d.kind=orpo", "direct.d.sft_coef=1"], "its loss holds that term already"),
        (["direct.d.kind=kto", "direct.d.sft_coef=1"], "sft_coef has no effect with kind = 'kto'"),
        (["direct.d.kind=kto", "direct.d.batch_size=1"], "use 2 or more"),
        (["direct.d.kind=dop"], "direct.d.kind = 'dop'"),
        (["direct.d.betta=1"], "direct.d.betta: unknown setting; did you mean 'beta'?"),
        (["direct.d.optim.learning_rat=1"], "did you mean 'learning_rate'?"),
        (["direct.start.data.path=x"], "'start' is the policy before these stages"),
    ],
)
def test_contradictions_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[").replace("?", r"\?")):
        parse_config(BASE, ".toml", overrides)


def test_kinds_are_presets_and_names_are_shared_with_the_online_stages():
    config = parse_config(BASE, ".toml", ["direct.d.kind=simpo"]).direct["d"]
    assert (config.beta, config.gamma) == (2.0, 1.0)
    assert parse_config(BASE, ".toml", ["direct.d.kind=cdpo"]).direct["d"].label_smoothing == 0.1
    online = '[rl.d]\nkind = "grpo"\nprompts.path = "p"\nrewards = [{kind = "format"}]\n'
    with pytest.raises(ConfigError, match=r"rl\.d and direct\.d share a name"):
        parse_config(BASE + online, ".toml")


def test_dpo_from_python_takes_rows_and_records(tiny_folder, tmp_path):
    quick = {"optim": {"learning_rate": 1e-3}, "compute": {"dtype": "float32", "threads": 1}, "batch_size": 4}
    result = tether.dpo(Policy.load(tiny_folder), ROWS, held_out_share=0.25, epochs=3, log=tmp_path / "log.jsonl", **quick)
    assert result.last_step["implied_margin"] > 0
    assert result.held_out.num_units == 3
    assert result.held_out.low <= result.held_out.accuracy <= result.held_out.high
    assert result.held_out.margin_before == 0
    assert len([e for e in read_events(tmp_path / "log.jsonl") if e["kind"] == "step"]) == 9
    records = [Comparison(row["prompt"], row["chosen"], row["rejected"]) for row in ROWS]
    same = tether.dpo(Policy.load(tiny_folder), records, held_out_share=0.25, epochs=3, **quick)
    assert same.held_out == result.held_out
    answers = [Feedback(row["prompt"], row[side], side == "chosen") for row in ROWS for side in ("chosen", "rejected")]
    kto = tether.dpo(Policy.load(tiny_folder), answers, kind="kto", held_out_share=0, **quick)
    assert kto.held_out is None
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        tether.dpo(Policy.load(tiny_folder), ROWS, epoch=3)


@pytest.fixture
def config(tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", ROWS)
    answers = [{"prompt": r["prompt"], "completion": r[side], "label": side == "chosen"} for r in ROWS for side in ("chosen", "rejected")]
    write_jsonl(tmp_path / "answers.jsonl", answers)
    write_jsonl(tmp_path / "held.jsonl", [{"prompt": f"Tell {i}.", "answer": str(i)} for i in range(3)])
    common = {"batch_size": 4, "max_length": 64, "held_out_share": 0.2, "optim": {"learning_rate": 1e-3}}
    return {
        "name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}, "compute": {"dtype": "float32", "threads": 1},
        "direct": {
            "dpo": {"data": {"path": str(tmp_path / "pairs.jsonl")}, **common},
            "kto": {"kind": "kto", "data": {"path": str(tmp_path / "answers.jsonl")}, **common},
        },
        "evaluate": {"prompts": {"path": str(tmp_path / "held.jsonl")}, "sampling": {"max_new_tokens": 6}},
    }  # fmt: skip


def test_a_run_trains_evaluates_and_reports_direct_stages_and_reuses_them(config):
    result = run(RunConfig.model_validate(config))
    for stage in ("direct.dpo", "direct.kto"):
        AutoModelForCausalLM.from_pretrained(result.folder / stage, local_files_only=True)
        summary = json.loads((result.folder / stage / "stage.json").read_text())["summary"]
        assert summary["held_out"]["num_units"] >= 2
    evaluation = json.loads((result.folder / "evaluation.json").read_text())
    assert [policy["name"] for policy in evaluation["policies"]] == ["start", "dpo", "kto"]
    assert evaluation["policies"][1]["kl_sequence_sum_nats"] != 0
    page = write_report(result.folder).read_text(encoding="utf-8")
    for words in ("direct preference stages: dpo, kto", "implied_margin", "the preference loss is the tether", "held-out comparisons or"):
        assert words in page
    events = list(read_events(result.folder / "events.jsonl"))
    run(RunConfig.model_validate(config))
    again = list(read_events(result.folder / "events.jsonl"))
    assert [e["kind"] for e in again].count("stage_started") == [e["kind"] for e in events].count("stage_started")


def test_bad_data_and_overlap_are_found_before_training(config, tmp_path):
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": " b"}])
    write_jsonl(tmp_path / "held.jsonl", [{"prompt": ROWS[0]["prompt"], "answer": "x"}])
    with pytest.raises(ConfigError) as caught:
        run(RunConfig.model_validate(config))
    assert "direct.dpo.data: " in str(caught.value)
    assert "training prompts too" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_recipe_runs_on_the_tiny_model(tmp_path, capsys):
    small = ["direct.dpo.data.limit=24", "direct.dpo.max_length=48", "sft.data.limit=8", "sft.max_length=48", "evaluate.prompts.limit=3",
             "evaluate.sampling.max_new_tokens=4", "compute.threads=1"]  # fmt: skip
    recipe = ["run", str(RECIPE), "--model", "tiny", f"output={tmp_path}", *small]
    assert cli.main([*recipe, "--dry-run"]) == 0
    assert "direct.dpo (dpo): 24 comparisons" in capsys.readouterr().out
    assert cli.main([*recipe, "--quiet"]) == 0
    assert (tmp_path / "dpo" / "report.html").exists()


def test_margins_of_the_rows_are_said_not_to_be_read(tiny_folder):
    rows, watcher = [{**row, "margin": 0.5} for row in ROWS], Watcher()
    tether.dpo(Policy.load(tiny_folder), rows, observer=watcher, compute={"dtype": "float32"})
    assert any("margins and labels of 12 rows are for a reward model and not read here" in message for message in watcher.messages)
