"""The audit reads databases and exports, tells the judges' lean to a side, and notices answers unlike those of the training."""

from __future__ import annotations

import json
import math
import random
import shutil

import numpy as np
import pytest
from planted import Scorer, draw_pairs, names, penalised, quality

from tether import cli
from tether.collect.entries import Answer
from tether.collect.exchange.export import export_file, export_rows
from tether.collect.exchange.judgement_rows import export_judgements
from tether.collect.exchange.rule import Rule
from tether.collect.exchange.tables import read_table
from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.settings import Settings
from tether.collect.store import Store
from tether.config import parse_config
from tether.errors import ConfigError, DataError, ModelError
from tether.models.resolve import resolve_model
from tether.models.reward import RewardModel
from tether.records import file_sha256, write_jsonl
from tether.rewards.linear import fit_linear, load_linear
from tether.rewards.seen import prompt_hashes, was_seen
from tether.run.linear_command import linear_command
from tether.run.reward_audit.audit import AuditRequest, audit_reward, reward_audit_command
from tether.run.reward_audit.judged import Judged
from tether.run.reward_audit.pairs import AuditPairs, load_pairs
from tether.run.reward_audit.position import position
from tether.run.reward_audit.scorer import Audited, load_audited
from tether.run.reward_audit.slices import slices
from tether.run.reward_audit.training_texts import training_texts
from tether.run.reward_audit.unlike import Likeness, conformal_limit, precision, shrunk_covariance, squared_distances
from tether.run.reward_audit.verdict import sentences_of
from tether.types import Comparison, Message, Prompt

PEOPLE = ("Ann", "Bo")


def fill(path, *, pairs: int = 80, lean: float = 0.0, held_out: float = 0.5, ties: bool = False, people=PEOPLE, balanced: bool = False):
    """People judge every pair by its quality, with Bradley-Terry noise and ``lean`` (log-odds) to the answer shown first."""
    draw, made = random.Random(3), draw_pairs(pairs, seed=2)
    with Store.create(str(path), Settings(held_out_share=held_out, seed=1)) as store:
        who = [store.add_annotator(name).id for name in people]
        store.add_prompts(Prompt(f"p{n}", f"Ask {n}: {pair.prompt}") for n, pair in enumerate(made))
        for side in ("chosen", "rejected"):
            end = "a" if side == "chosen" else "b"
            store.add_answers(Answer(f"p{n}{end}", f"p{n}", getattr(pair, side)) for n, pair in enumerate(made))
        items = [Item(f"i{n}", f"p{n}", (f"p{n}a", f"p{n}b")) for n in range(pairs)]
        store.add_items(items)
        said = []
        for n, (item, pair) in enumerate(zip(items, made, strict=True)):
            for turn, person in enumerate(who):
                shown = tuple(draw.sample(item.answers, 2))
                if balanced:
                    shown = item.answers[:: 1 if (n + turn) % 2 else -1]
                gap = quality(pair.chosen) - quality(pair.rejected) + lean * (1 if shown[0] == item.answers[0] else -1)
                choice = Choice.FIRST if draw.random() < 1 / (1 + math.exp(-gap)) else Choice.SECOND
                if ties and len(who) > 2 and (n + turn) % 7 == 0:
                    choice = Choice.TIE
                elif ties and n % 5 == 0 and len(who) == 2:
                    choice = Choice.FIRST if person == who[0] else Choice.SECOND
                said.append(Judgement(f"j{n}{person}", item.item_id, person, choice, shown))
        store.record_all(said)
    return str(path)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("judged") / "answers.db", ties=True)


def test_a_database_is_read_with_its_ceiling_sides_and_annotators(database):
    given = load_pairs(database, None, None, {})
    assert given.source.endswith("[held_out]")
    assert all(len(votes) == 2 for votes in given.votes)
    assert {vote.annotator for votes in given.votes for vote in votes} == set(PEOPLE)
    for pair, votes in zip(given.pairs, given.votes, strict=True):  # a pair on which the two differ is one tie, not two rows
        assert pair.label == (0.5 if votes[0].outcome != votes[1].outcome else 1.0)
        assert pair.label == 0.5 or all(vote.outcome == 1 for vote in votes)
    every = load_pairs(database, "all", None, {})
    assert len(every.pairs) == 80 > len(given.pairs) > 20
    assert len(load_pairs(database, "all", 7, {}).pairs) == 7
    found = audit_reward(Audited("planted", Scorer(penalised)), every, slices=("annotator", "side", "num_judgements"))
    assert found["ceiling"]["source"].startswith("the database's own judgements")
    assert found["ceiling"]["against"]["units"] == 160
    tables = {table["title"].split(":")[0]: {row["value"]: row for row in table["rows"]} for table in found["slices"]}
    assert {name: row["pairs"] for name, row in tables["annotator"].items()} == {"Ann": 80, "Bo": 80}
    assert set(tables["side"]) == {"preferred answer shown first", "preferred answer shown second"}  # of judgements, not of pairs
    assert sum(row["pairs"] for row in tables["side"].values()) == 160
    decided = sum(pair.label != 0.5 for pair in every.pairs)
    assert f"of {decided} decided pairs of {decided} prompts" in found["sentences"][0]
    told = " ".join(found["sentences"])
    assert "It agrees with a single judgement in" in told
    assert "as `tether collect stats` has it" in told
    given_one = audit_reward(Audited("planted", Scorer(penalised)), every, ceiling=(0.8, 0.8))
    assert given_one["ceiling"]["source"] == "--judgements-ceiling"
    with pytest.raises(ConfigError, match=r"--slice colour: .*known: agreement, annotator, "):
        audit_reward(Audited("planted", Scorer(penalised)), every, slices=("colour",))


def test_the_sides_of_a_database_are_those_that_were_recorded(database):
    with Store.open(database) as store:
        texts = {answer.answer_id: answer.text for answer in store.answers()}
        said = {(judgement.item_id, judgement.annotator): judgement for judgement in store.judgements()}
        people = {annotator.name: annotator.id for annotator in store.annotators()}
    given = load_pairs(database, "all", None, {})
    for pair, row, votes in zip(given.pairs, given.rows, given.votes, strict=True):
        for vote in votes:
            judgement = said[row["item_id"], people[vote.annotator]]
            assert vote.chosen_first == (texts[judgement.shown[0]] == pair.chosen)
            winner = texts[f"p{judgement.item_id[1:]}{'a' if judgement.choice is Choice.FIRST else 'b'}"]
            assert (vote.outcome > 0) == (winner == pair.chosen)


def test_too_few_judgements_for_a_ceiling_say_so(tmp_path):
    found = audit_reward(Audited("planted", Scorer(penalised)), load_pairs(fill(tmp_path / "small.db", pairs=12), "all", None, {}))
    assert found["ceiling"] is None
    assert any("How good a model could be at most is not known: the ceiling needs at least 30 pairs" in one for one in found["sentences"])


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_exports_are_audited_as_the_database_is(database, tmp_path, ending):
    path = tmp_path / f"held.{ending}"
    with Store.open(database) as store:
        export_file(store, path, Rule(split="held_out", ties="both_orders"))
    from_file, from_database = load_pairs(str(path), None, None, {}), load_pairs(database, None, None, {})
    assert from_file.pairs == from_database.pairs
    for source in (str(path), database):
        with pytest.raises(DataError, match="--limit must be at least 1"):
            load_pairs(source, None, 0, {})


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_file_of_single_judgements_is_audited_as_its_database_is(database, tmp_path, ending):
    path = tmp_path / f"said.{ending}"
    with Store.open(database) as store:
        export_judgements(store, path, Rule(split="held_out"))
    from_file, wanted = load_pairs(str(path), None, None, {}), load_pairs(database, None, None, {})
    assert from_file.source == f"{path} [single judgements]"
    assert from_file.sha256 == file_sha256(path)

    def told(given):
        """Which answer of a tie is called chosen is nobody's word."""
        votes = zip(given.pairs, given.votes, strict=True)
        said = ((pair, sorted((one.annotator, one.outcome, one.chosen_first) for one in own)) for pair, own in votes)
        return {(pair.prompt, pair.chosen, *own) for pair, own in said if pair.label == 1}

    assert told(from_file) == told(wanted)
    assert len(from_file.pairs) == len(wanted.pairs)
    rows = [{**row, "chosen_by": "uncertainty"} for row in read_table(path)]
    write_jsonl(tmp_path / "hard.jsonl", rows)
    assert "chosen for being hard" in load_pairs(str(tmp_path / "hard.jsonl"), None, None, {}).no_ceiling
    (tmp_path / "bad.jsonl").write_text(json.dumps({"prompt": "q", "answers": ["a"], "choice": "x", "annotator": "A", "shown": [0]}) + "\n")
    with pytest.raises(DataError, match=r"row 1: `answers` must be a list of two or more"):
        load_pairs(str(tmp_path / "bad.jsonl"), None, None, {})


def test_a_linear_model_is_fitted_to_the_training_split_and_audited_on_the_other(database, tmp_path, capsys):
    fitted = tmp_path / "linear.json"
    assert cli.main(["reward", "linear", database, "--feature", "log_length", "--output", str(fitted)]) == 0
    train, held = load_pairs(database, "train", None, {}), load_pairs(database, None, None, {})
    seen = frozenset(load_linear(fitted).fitted_to["prompts"].split())
    assert all(was_seen(pair.prompt, seen) for pair in train.pairs if pair.label == 1)
    assert not any(was_seen(pair.prompt, seen) for pair in held.pairs)
    page = str(tmp_path / "a.html")
    cli.main(["reward", "audit", str(fitted), "--data", database, "--split", "all", "--output", page, "--slice", "annotator"])
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["data"]["left_out_seen_in_training"] == len(seen)
    assert "yours to know" not in " ".join(found["sentences"])
    assert "By annotator" in capsys.readouterr().out


def test_pairs_that_a_linear_model_was_fitted_to_are_left_out_whatever_their_form(tmp_path):
    pairs = draw_pairs(40)
    fitted_to = fit_linear(pairs[:20], ["log_length"]).fitted_to
    assert fitted_to["prompts"] == prompt_hashes(pair.prompt for pair in pairs[:20])
    turns = [
        {"prompt": [{"role": "user", "content": p.prompt}], "chosen": [{"role": "assistant", "content": p.chosen}],
         "rejected": [{"role": "assistant", "content": p.rejected}]}
        for p in [*pairs, Comparison("New?", "calm", "rude")]
    ]  # fmt: skip
    write_jsonl(tmp_path / "turns.jsonl", turns)
    left = load_pairs(str(tmp_path / "turns.jsonl"), None, None, fitted_to)
    assert {pair.prompt for pair in left.pairs} == {(Message("user", "New?"),)}


# -- sides -------------------------------------------------------------------------------------------------------------------


def leaning(lean: float, count: int = 1000, seed: int = 0) -> AuditPairs:
    """One judge a pair, sides at random."""
    draw, pairs, rows = random.Random(seed), [], []
    for n in range(count):
        good, first = draw.uniform(-2, 2), draw.random() < 0.5
        one_won = draw.random() < 1 / (1 + math.exp(-good - lean * (1 if first else -1)))
        one, two = f"{good:.4f}", f"{0.0:.4f}"
        pairs.append(Comparison(f"q{n}", one, two) if one_won else Comparison(f"q{n}", two, one))
        rows.append({"chosen_shown_first": float(first == one_won)})
    return AuditPairs(tuple(pairs), tuple(rows))


def judged_of(path) -> Judged:
    given = load_pairs(str(path), "all" if str(path).endswith(".db") else None, None, {})
    scores = np.array([penalised("", text) for side in ("chosen", "rejected") for text in (getattr(p, side) for p in given.pairs)])
    return Judged.of(Audited("honest", Scorer(penalised)), given, scores, np.arange(len(given.pairs)))


@pytest.mark.parametrize(("people", "ties"), [(PEOPLE, False), (("Ann", "Bo", "Cy"), True)])
def test_an_export_tells_the_lean_that_its_database_tells(tmp_path, people, ties):
    """Every pair is shown in both orders, so the share that saw chosen first says nothing; who won by side does."""
    path = fill(tmp_path / "a.db", pairs=150, lean=0.8, people=people, balanced=True, ties=ties)
    wanted = position(judged_of(path))
    assert wanted["first_won"]["low"] > 0.51
    by_side = slices(judged_of(path), ("side",))[0]
    for ending in ("jsonl", "csv", "parquet"):
        with Store.open(path) as store:
            export_file(store, tmp_path / f"a.{ending}", Rule(split="all", ties="both_orders"))
        told = position(judged_of(tmp_path / f"a.{ending}"))
        assert told["source"] == "150 pairs, column votes_chosen"
        assert told["judgements"] == wanted["judgements"]
        for name in ("first_won", "judges", "model"):
            assert told[name].pop("name", "") == wanted[name].get("name", "")
            assert told[name] == pytest.approx({key: value for key, value in wanted[name].items() if key != "name"})
        for one, other in zip(slices(judged_of(tmp_path / f"a.{ending}"), ("side",))[0]["rows"], by_side["rows"], strict=True):
            assert (one["pairs"], one["accuracy"]["estimate"]) == (other["pairs"], pytest.approx(other["accuracy"]["estimate"]))


def test_what_a_file_does_not_tell_of_sides_is_not_called_noise(tmp_path):
    path = fill(tmp_path / "a.db", pairs=60, lean=0.8, balanced=True)
    with Store.open(path) as store:
        export_file(store, tmp_path / "decided.jsonl", Rule(split="all"))
        rows = list(export_rows(store, Rule(split="all", ties="both_orders")))
    write_jsonl(tmp_path / "old.jsonl", [{name: row[name] for name in row if not name.startswith("votes_")} for row in rows])
    told = {"decided": "pairs on which as many judges were for each answer are not in this file", "old": "not which answer they then"}
    for name, why in told.items():
        given = load_pairs(str(tmp_path / f"{name}.jsonl"), None, None, {})
        found = audit_reward(Audited("honest", Scorer(penalised)), given)
        assert why in found["position"]["missing"]
        (sentence,) = [one for one in found["sentences"] if "Whether labels follow the side" in one]
        assert "--ties both_orders" in sentence
        assert "half" not in sentence
        with pytest.raises(ConfigError, match=r"--slice side cannot be told: .*--ties both_orders"):
            audit_reward(Audited("honest", Scorer(penalised)), given, slices=("side",))


def test_pairs_of_three_judges_tell_the_lean_without_ties(tmp_path):
    """No tie can be missing among them; of two judges those who differed are."""
    path = fill(tmp_path / "a.db", pairs=100, lean=0.8, people=("Ann", "Bo", "Cy"), balanced=True)
    with Store.open(path) as store:
        export_file(store, tmp_path / "a.jsonl", Rule(split="all"))
    told = position(judged_of(tmp_path / "a.jsonl"))
    assert (told["judgements"], told["first_won"]) == (300, position(judged_of(path))["first_won"])


def test_a_ceiling_is_held_against_single_judgements_where_an_export_counts_them(tmp_path):
    """Against the majority of three judges it does better than against one."""
    path = fill(tmp_path / "a.db", pairs=150, people=("Ann", "Bo", "Cy"), balanced=True)
    with Store.open(path) as store:
        export_file(store, tmp_path / "a.jsonl", Rule(split="all", ties="both_orders"))
        rows = list(export_rows(store, Rule(split="all")))
    write_jsonl(tmp_path / "old.jsonl", [{name: row[name] for name in row if not name.startswith("votes_")} for row in rows])
    of_all, of_export, of_old = (
        audit_reward(Audited("planted", Scorer(penalised)), load_pairs(str(source), split, None, {}), ceiling=(0.8, 0.8))
        for source, split in ((path, "all"), (tmp_path / "a.jsonl", None), (tmp_path / "old.jsonl", None))
    )
    assert of_export["ceiling"]["against"] == pytest.approx(of_all["ceiling"]["against"])
    assert of_export["ceiling"]["against"]["estimate"] < of_export["accuracy"]["estimate"] - 0.03
    assert of_old["ceiling"]["against"] is None
    assert any("easier to agree with than the single judgement" in sentence for sentence in of_old["sentences"])
    assert not any("easier to agree with" in sentence for sentence in of_export["sentences"])


def by_number(prompt, text):
    try:
        return float(text)
    except ValueError:
        return -9.0


def test_the_judges_lean_is_recovered_and_explains_the_models_errors():
    found = audit_reward(Audited("honest", Scorer(by_number)), leaning(0.8), slices=("side",))
    told = found["position"]
    assert told["judges"]["low"] < 0.65 < told["judges"]["high"]  # 0.8 beside the noise of gaps from -2 to 2 is worth 0.65 without them
    assert told["first_won"]["low"] > 0.6
    assert told["model"]["high"] < 0
    assert {"judges lean to a side"} == {name for name in names(found) if "side" in name}
    assert any("the side decided part of the labels" in one for one in found["sentences"])
    sides = {row["value"]: row["accuracy"]["estimate"] for row in found["slices"][0]["rows"]}
    assert sides["preferred answer shown second"] > sides["preferred answer shown first"] + 0.05


def test_which_answer_a_row_calls_chosen_changes_nothing():
    """Every other pair the other way round, with the label 0."""
    given = leaning(0.8, 300)
    pairs = [Comparison(p.prompt, p.rejected, p.chosen, label=0.0) if n % 2 else p for n, p in enumerate(given.pairs)]
    shown = [row["chosen_shown_first"] for row in given.rows]
    rows = tuple({"chosen_shown_first": 1 - first if n % 2 else first} for n, first in enumerate(shown))
    one, other = (audit_reward(Audited("honest", Scorer(by_number)), told)["position"] for told in (given, AuditPairs(tuple(pairs), rows)))
    for name in ("first_won", "judges", "model"):
        assert {k: v for k, v in other[name].items() if k != "name"} == pytest.approx({k: v for k, v in one[name].items() if k != "name"})


def test_judges_who_do_not_lean_are_not_accused():
    told = audit_reward(Audited("honest", Scorer(by_number)), leaning(0.0))
    assert told["position"]["judges"]["low"] < 0 < told["position"]["judges"]["high"]
    assert told["position"]["model"]["low"] < 0 < told["position"]["model"]["high"]
    assert not {name for name in names(told) if "side" in name}
    assert any("its errors do not depend on the side" in one for one in told["sentences"])


def test_texts_that_tell_the_side_are_found_out():
    """Every longer text stood first, and judges lean to the first: a model of length follows the side."""
    given = leaning(0.8)
    shown = [row["chosen_shown_first"] for row in given.rows]
    sides = zip(given.pairs, map(int, shown), strict=True)
    pairs = [Comparison(p.prompt, p.chosen + " x" * first, p.rejected + " x" * (1 - first)) for p, first in sides]
    found = audit_reward(Audited("length", Scorer(lambda prompt, text: len(text.split()))), AuditPairs(tuple(pairs), given.rows))
    assert found["position"]["model"]["low"] > 0
    assert {"judges lean to a side", "the texts tell the side"} <= names(found)


def test_without_sides_the_page_says_so_and_a_wrong_share_is_refused(tmp_path):
    given = leaning(0.0, 60)
    found = audit_reward(Audited("honest", Scorer(by_number)), AuditPairs(given.pairs, ({},) * 60))
    assert set(found["position"]) == {"missing"}
    assert any("nothing in these data says which of two answers the judges were shown first" in one for one in found["sentences"])
    rows = [{"prompt": "q", "chosen": "a", "rejected": "b", "chosen_shown_first": 1.5}]
    write_jsonl(tmp_path / "wrong.jsonl", rows)
    with pytest.raises(DataError, match=r"row 1: `chosen_shown_first` must be a share from 0 to 1, got 1.5"):
        load_pairs(str(tmp_path / "wrong.jsonl"), None, None, {})
    for counts in ([1], [1, -1], [1, 0.5], [True, 1], "1", None):
        write_jsonl(tmp_path / "wrong.jsonl", [rows[0] | {"chosen_shown_first": 1, "votes_chosen": [2, 0], "votes_rejected": counts}])
        with pytest.raises(DataError, match=r"row 1: `votes_chosen` and `votes_rejected` must be two counts each, got \[2, 0\] and "):
            load_pairs(str(tmp_path / "wrong.jsonl"), None, None, {})


# -- unlike the training -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A reward model in the folder of its run; nothing is trained, which decides nothing here."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    rows = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in draw_pairs(200, seed=4)]
    data = write_jsonl(folder.parent / "pairs.jsonl", rows)
    config = parse_config(f'name = "one"\n[model]\npath = "tiny"\n[reward_model]\ndata.path = "{data}"\n', ".toml")
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    model = RewardModel.from_base(resolve_model("tiny"))
    trained = prompt_hashes(row["prompt"] for row in rows[:70])
    model.fitted_to = {"data_sha256": file_sha256(data), "prompts": trained}
    model.save(folder / "reward_model")
    return folder


@pytest.mark.slow
def test_strange_answers_are_noticed_and_like_ones_pass_at_the_stated_rate(run_folder, tmp_path):
    pairs = draw_pairs(80, seed=9)  # other answers, to prompts that the run held out
    new = [{"prompt": f"Question {70 + n % 30}?", "chosen": p.chosen, "rejected": p.rejected} for n, p in enumerate(pairs)]
    write_jsonl(tmp_path / "new.jsonl", new)
    request = AuditRequest(str(run_folder / "reward_model"), str(tmp_path / "new.jsonl"), output=tmp_path / "a.html")
    found, page, _ = reward_audit_command(request)
    told = found["unlike"]
    assert told["limit_from"] == "held-out answers of its run"
    assert told["same_texts"] == 0
    assert told["beyond"]["estimate"] <= 0.09  # at most 5 %, and two and a half standard errors of 160 answers
    assert {one["name"]: one["noticed"] for one in told["strange"]} == {"another language": 1, "code": 1, "random tokens": 1}
    assert "unlike its training" not in names(found)
    assert "Would it notice?" in page.read_text()
    code = ((f"for (i = {n}) {{ x[{n}] }}", f"if ({n}) {{ y; }}") for n in range(30))
    strange = [{"prompt": f"Question {70 + n}?", "chosen": one, "rejected": two} for n, (one, two) in enumerate(code)]
    write_jsonl(tmp_path / "strange.jsonl", strange)
    other, _, _ = reward_audit_command(AuditRequest(request.model, str(tmp_path / "strange.jsonl"), output=tmp_path / "b.html"))
    assert "unlike its training" in names(other)
    assert other["unlike"]["accuracy"]["like"]["units"] < 5


def test_where_the_training_texts_are_not_at_hand_the_page_says_why(run_folder, tmp_path):
    model = RewardModel.load(run_folder / "reward_model")
    lone = tmp_path / "reward_model"
    shutil.copytree(run_folder / "reward_model", lone)
    assert "does not lie in the folder of a run" in training_texts(str(lone), model)
    moved = json.loads((run_folder / "config.json").read_text())
    data = moved["reward_model"]["data"]
    data["path"] = str(tmp_path / "gone.jsonl")
    (tmp_path / "config.json").write_text(json.dumps(moved))
    assert "cannot be read" in training_texts(str(lone), model)
    write_jsonl(tmp_path / "gone.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b"}])
    assert "no longer what it was trained on (another SHA-256); keep the files" in training_texts(str(lone), model)
    model.fitted_to["data_sha256"] = file_sha256(tmp_path / "gone.jsonl")
    assert "2 different answers, too few to set a limit by: it takes 60 held-out ones" in training_texts(str(lone), model)
    found = audit_reward(Audited("honest", Scorer(penalised)), AuditPairs(tuple(draw_pairs(40)), ({},) * 40))
    assert found["unlike"] == {"missing": "it is no model that reads tokens"}
    assert found["sentences"] == sentences_of(found)


def test_few_held_out_answers_are_helped_out_by_training_prompts_left_out_of_the_fit(run_folder):
    model = RewardModel.load(run_folder / "reward_model")
    rows = [json.loads(line) for line in (run_folder.parent / "pairs.jsonl").read_text().splitlines()]
    model.fitted_to["prompts"] = prompt_hashes(row["prompt"] for row in rows)
    told = training_texts(str(run_folder / "reward_model"), model)
    assert told.limit_from == "answers to a fifth of its training prompts, left out of the fit"
    assert not {prompt for prompt, _ in told.limit} & {prompt for prompt, _ in told.fit}
    assert len(told.limit) == 80
    likeness = Likeness.fit(model, told, 16_384)
    assert likeness.beyond(told.limit)[0].sum() <= 2


def test_a_database_that_has_grown_is_known_by_its_training_prompts(run_folder, tmp_path):
    """New prompts set no limit: their answers may be unlike."""
    path = fill(tmp_path / "grown.db", pairs=190, held_out=0.0, people=("Ann",))
    told = json.loads((run_folder / "config.json").read_text())
    told["reward_model"]["data"]["path"] = path
    shutil.copytree(run_folder / "reward_model", tmp_path / "run" / "reward_model")
    (tmp_path / "run" / "config.json").write_text(json.dumps(told))
    model = RewardModel.load(run_folder / "reward_model")
    prompts = [pair.prompt for pair in load_pairs(path, "train", None, {}).pairs]
    model.fitted_to["prompts"] = prompt_hashes(prompts[:160])
    found = training_texts(str(tmp_path / "run" / "reward_model"), model)
    assert found.limit_from.startswith("answers to a fifth of its training prompts")
    assert {prompt for prompt, _ in (*found.fit, *found.limit)} <= set(prompts[:160])
    assert found.source == f"{path} (judged on since; the 160 of its 160 training prompts that are there)"
    model.fitted_to["prompts"] = prompt_hashes([*prompts[:160], *(f"other {n}" for n in range(40))])
    assert "holds 160 of the 200 prompts" in training_texts(str(tmp_path / "run" / "reward_model"), model)
    assert "tether collect dump" in training_texts(str(tmp_path / "run" / "reward_model"), model)


def test_the_folder_of_a_run_stands_for_its_reward_model(run_folder, tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(ModelError, match="is the folder of a run, and it has trained no reward model"):
        load_audited(str(tmp_path))
    shutil.copytree(run_folder / "reward_model", tmp_path / "reward_model")
    assert load_audited(str(tmp_path)).name == str(tmp_path / "reward_model")


def test_limits_and_covariances_by_hand():
    assert conformal_limit(np.arange(1.0, 40.0), 0.025) == 39
    assert conformal_limit(np.arange(1.0, 39.0), 0.025) == math.inf
    assert conformal_limit(np.arange(1.0, 100.0), 0.05) == 95
    draw = np.random.default_rng(0)
    true = np.diag([4.0, 1.0, 0.25])
    near = shrunk_covariance(draw.normal(size=(20_000, 3)) * np.sqrt(np.diag(true)))
    assert near == pytest.approx(true, abs=0.1)
    rows = draw.normal(size=(200, 20)) * np.array([300.0] + [1.0] * 19)  # one hidden unit far larger than the others
    unusual = np.zeros((2, 20))
    unusual[0, 5], unusual[1, 0] = 12.0, 300.0  # twelve standard deviations in a small one, one in the large one
    far, near_by = squared_distances(unusual, precision(rows))
    assert far > 100
    assert near_by < 2
    few = shrunk_covariance(draw.normal(size=(5, 30)))
    assert np.linalg.eigvalsh(few).min() > 0.1  # fewer rows than directions, and still invertible


def test_linear_command_reads_csv_with_columns_as_numbers(tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "prompt,chosen,rejected,chosen_kind,rejected_kind\n" + "".join(f"q{n},a,b,{1 + n % 2},{n % 3}\n" for n in range(30))
    )
    model, _ = linear_command(str(tmp_path / "pairs.csv"), tmp_path / "x.json", ('{"name": "kindness", "column": "kind"}',), 1e-3)
    assert model.weights[0] > 0
