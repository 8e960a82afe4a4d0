"""The audit finds planted faults, and does not find any in an honest model; the page, the JSON, and folders of plain transformers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from planted import BAD, GOOD, Scorer, draw_pairs, names, penalised, quality
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tether import cli
from tether.errors import ConfigError, DataError, ModelError
from tether.models.resolve import resolve_model
from tether.records import file_sha256, write_jsonl
from tether.report.reward_audit import audit_text, render_reward_audit
from tether.rewards.linear import fit_linear
from tether.rewards.seen import prompt_hash
from tether.run.reward_audit.audit import AuditRequest, audit_reward, parse_ceiling, reward_audit_command
from tether.run.reward_audit.figures import calibration, cross_validated, explained_interval, explained_share, logistic, mean_interval
from tether.run.reward_audit.pairs import AuditPairs, load_pairs
from tether.run.reward_audit.scorer import Audited
from tether.run.reward_audit.variations import PARAPHRASES, PROBES, paraphrase
from tether.types import Comparison, Message


def audited(scorer: Scorer, **more):
    pairs = tuple(draw_pairs(240))
    return audit_reward(Audited("planted", scorer, **more.pop("known", {})), AuditPairs(pairs, ({},) * len(pairs)), **more)


# -- planted faults ----------------------------------------------------------------------------------------------------------


def test_an_honest_model_is_not_flagged():
    found = audited(Scorer(penalised))
    assert found["flags"] == []
    assert found["accuracy"]["estimate"] > 0.75
    assert all(check["largest"] == 0 for check in found["invariances"])
    assert any("it is better than length alone" in sentence for sentence in found["sentences"])


def test_a_model_that_only_counts_tokens_is_found_out():
    found = audited(Scorer(lambda prompt, text: math.log1p(len(text.split()))))
    assert {"no better than length", "explained by length", "probe: chosen, three times", "probe: rejected, very long"} <= names(found)
    assert found["length"]["length_only"]["explained"] > 0.99
    assert found["length"]["prefers_longer"]["estimate"] == 1
    assert any("its accuracy is within noise of length alone" in sentence for sentence in found["sentences"])
    lengths = next(one for one in found["form"] if one["name"] == "log_length")
    assert lengths["low"] > 2


def test_a_model_that_tosses_a_coin_is_called_that_before_anything_else():
    given = AuditPairs(tuple(draw_pairs(150)), ())
    tossed = audit_reward(Audited("coin", Scorer(lambda prompt, text: sum(map(ord, text)) * 7919 % 1009 / 500)), given)
    assert tossed["accuracy"]["low"] < 0.5 < tossed["accuracy"]["high"]
    assert tossed["flags"][0]["name"] == "not distinguishable from a coin"
    assert "more pairs" in tossed["flags"][0]["text"]
    assert "epochs" in tossed["flags"][0]["text"]
    flags = {flag["name"]: flag["text"] for flag in tossed["flags"]}
    assert tossed["length"]["length_only"]["accuracy"]["low"] < 0.5  # so length is no remedy
    assert "would be cheaper" not in flags["no better than length"]
    against = audit_reward(Audited("against", Scorer(lambda prompt, text: -penalised(prompt, text))), given)
    assert against["flags"][0]["name"] == "worse than a coin"


def test_a_batch_dependent_model_is_found_out():
    def normed(texts):  # as batch normalisation would
        scores = np.array([quality(text) for text in texts])
        return list(scores - scores.mean())

    found = audited(Scorer(batch=normed))
    assert {"batch composition", "padding"} <= names(found)
    assert [check["holds"] for check in found["invariances"] if check["name"] == "batch composition"] == [False]


def test_a_model_that_reads_its_padding_is_found_out():
    found = audited(Scorer(batch=lambda texts: [quality(text) + 0.001 * max(map(len, texts)) for text in texts]))
    assert "padding" in names(found)


def test_a_model_that_looks_at_the_order_is_found_out():
    found = audited(Scorer(batch=lambda texts: [quality(text) + 0.01 * at for at, text in enumerate(texts)]))
    assert "order of the two answers" in names(found)


@pytest.mark.parametrize(
    ("fooled_by", "probe"),
    [
        ("highest score", "rejected, injection first"), ("wonderful", "rejected, flattery first"), ("can't help", "refusal"),
        ("question", "the prompt copied"),
    ],
)  # fmt: skip
def test_a_model_that_is_fooled_by_a_probe_is_found_out(fooled_by, probe):
    found = audited(Scorer(lambda prompt, text: penalised(prompt, text) + 20 * (fooled_by in text.casefold())))
    assert f"probe: {probe}" in names(found)


def test_a_model_that_is_far_too_sure_is_found_out():
    assert "not calibrated" in names(audited(Scorer(lambda prompt, text: 30 * penalised(prompt, text))))
    stored = audited(Scorer(lambda prompt, text: 30 * penalised(prompt, text)), known={"log_odds_per_unit": 1 / 30})
    assert stored["flags"] == []  # the stored factor says what a unit is worth


def test_a_model_that_minds_the_case_of_a_letter_shows_it():
    found = audited(Scorer(lambda prompt, text: penalised(prompt, text) + 3 * text[:1].isupper()))
    shifts = {one["name"]: one for one in found["paraphrases"]}
    spread = 3 / abs(shifts["case of the first letter"]["mean"])
    assert shifts["case of the first letter"]["mean"] < -0.8
    assert spread > 0
    assert shifts["white space"]["largest"] == 0


def test_texts_that_the_model_refuses_are_counted_and_left_out():
    def picky(prompt, text):
        if len(text) > 120:
            raise DataError("121 characters, it takes 120")
        return penalised(prompt, text)

    found = audited(Scorer(picky))
    assert found["data"]["refused"] > 0
    assert found["data"]["pairs"] + found["data"]["refused"] == 240
    assert "121 characters" in found["data"]["refusal"]
    assert {one["name"]: one["refused"] for one in found["probes"]}["rejected, very long"] > 0.9 * found["data"]["pairs"]
    with pytest.raises(ModelError, match="gave nan"):
        audited(Scorer(lambda prompt, text: math.nan))


# -- figures -----------------------------------------------------------------------------------------------------------------


def test_calibration_by_hand_and_against_chance():
    """Ten pairs 80 % sure of which 5 are right: an error of .3."""
    gap = np.full(10, math.log(0.8 / 0.2))
    label = np.array([1.0] * 5 + [0.0] * 5)
    told = calibration(gap, label, range(10), seed=0)
    assert told.ece == pytest.approx(0.3)
    (full,) = [one for one in told.bins if one.num_pairs]
    assert (full.num_pairs, full.confidence, full.accuracy) == (10, pytest.approx(0.8), 0.5)
    assert full.accuracy_low < 0.5 < full.accuracy_high
    assert told.ece_by_chance < 0.3


def test_the_bias_regression_recovers_what_was_planted():
    draw = np.random.default_rng(1)
    d = draw.normal(size=(4000, 2))
    prefers = (draw.random(4000) < 1 / (1 + np.exp(-(0.5 + 1.2 * d[:, 0])))).astype(float)
    ones = np.ones(4000)
    label, first, second = logistic(["x", "y"], d, ones, prefers, range(4000))
    assert label.value == pytest.approx(0.5, abs=0.12)
    assert first.low < 1.2 * d[:, 0].std() < first.high
    assert second.low < 0 < second.high
    assert second.p_value > 0.01 > first.p_value
    assert [one.name for one in logistic(["x", "same"], d * [1, 0], ones, prefers, range(4000))] == ["label", "x"]


def test_a_tie_is_no_word_for_the_answer_that_a_row_calls_chosen():
    """A third are ties; every other pair the other way round, with the other label, is the same data."""
    pairs = [replace(pair, label=0.5) if n % 3 == 0 else pair for n, pair in enumerate(draw_pairs(240))]
    turned = [replace(p, chosen=p.rejected, rejected=p.chosen, label=1 - p.label) if n % 2 else p for n, p in enumerate(pairs)]
    one, other = (audit_reward(Audited("planted", Scorer(penalised)), AuditPairs(tuple(told), ())) for told in (pairs, turned))
    assert [coefficient["name"] for coefficient in one["form"]] == ["label", "log_length"]
    for here, there in zip(one["form"], other["form"], strict=True):
        for key in ("value", "low", "high", "p_value"):
            assert here[key] == pytest.approx(there[key], rel=1e-6, abs=1e-9)
    draw = np.random.default_rng(2)
    label = np.repeat([1.0, 0.5], 2000)
    prefers = (draw.random(4000) < 1 / (1 + np.exp(-1.5 * (2 * label - 1)))).astype(float)  # it tosses a coin where the judges do
    (found,) = logistic([], np.zeros((4000, 0)), label, prefers, range(4000))
    assert found.low < 1.5 < found.high


def test_explained_share_and_the_fair_opponent():
    d = np.array([[1.0], [-2.0], [3.0]])
    assert explained_share(2 * d[:, 0], d) == pytest.approx(1)
    assert explained_share(np.array([1.0, 1.0, 0.0]), np.array([[1.0], [-1.0], [0.0]])) == pytest.approx(0)
    assert math.isnan(explained_share(np.zeros(3), d))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 2))
    gap = x @ [1.0, 0.5] + draw.normal(size=300) * math.sqrt(1.25)  # half of it explained
    told = explained_interval(gap, x, [n // 3 for n in range(300)], seed=0)
    assert told.estimate == explained_share(gap, x)
    assert 0.4 < told.low < 0.5 < told.high < 0.65
    assert told.num_units == 100
    gaps = cross_validated(np.array([[1.0], [1.0], [1.0], [-1.0]]), np.ones(4), [0, 0, 1, 2], folds=3)
    assert gaps[3] < 0 < gaps[2]  # what the fourth pair says is not known to the model that is asked about it
    assert cross_validated(d, np.ones(3), [0, 0, 0]).tolist() == [0, 0, 0]


def test_intervals_resample_prompts():
    """The same value twenty times in each of two prompts is two values, not forty."""
    values = np.array([0.0] * 20 + [1.0] * 20)
    few, many = mean_interval(values, [0] * 20 + [1] * 20, 0), mean_interval(values, range(40), 0)
    assert (few.low, few.high, few.num_units) == (0, 1, 2)
    assert 0.3 < many.low < many.high < 0.7
    one = mean_interval(values, [0] * 40, 0)
    assert (one.estimate, one.low, one.high, one.num_units) == (0.5, -math.inf, math.inf, 1)  # one prompt says nothing of others


def test_sides_that_are_told_of_one_prompt_alone_bound_nothing():
    pairs = draw_pairs(40)  # numbers 0 and 20 have one prompt
    rows = tuple({"chosen_shown_first": n / 20} if n in (0, 20) else {} for n in range(40))
    found = audit_reward(Audited("planted", Scorer(penalised)), AuditPairs(tuple(pairs), rows))
    assert found["position"]["judges"]["low"] is None
    assert "[–, –]" in next(sentence for sentence in found["sentences"] if "was preferred in" in sentence)
    assert "[–, –]" in audit_text(found)
    assert "Position on the judges" in render_reward_audit(found)


def test_a_model_that_scores_all_answers_alike_prefers_no_length():
    found = audited(Scorer(lambda prompt, text: 0.0))
    assert found["length"]["prefers_longer"]["estimate"] == 0.5
    assert not any("nan" in text for text in (*found["sentences"], *(flag["text"] for flag in found["flags"])))


def test_slices_keep_long_values_apart_and_do_not_take_a_missing_column_for_the_side():
    pairs = draw_pairs(40)
    start = "a checkpoint of a run with a very long name, "
    rows = [{"model": f"{start}{n % 2}", "rare": "yes" if n == 0 else None} for n in range(40)]

    def picky(prompt, text):
        if text == pairs[0].chosen:
            raise DataError("too long")
        return penalised(prompt, text)

    found = audit_reward(Audited("planted", Scorer(picky)), AuditPairs(tuple(pairs), tuple(rows)), slices=("model", "rare"))
    by_model, rare, _ = found["slices"]
    assert [row["pairs"] for row in by_model["rows"]] == [19, 20]
    assert [(len(row["value"]), row["value"][-7:]) for row in by_model["rows"]] == [(40, "name, 0"), (40, "name, 1")]
    assert rare["title"] == "rare"
    assert [(row["value"], row["pairs"]) for row in rare["rows"]] == [("not told", 39)]


def test_the_ceiling():
    assert parse_ceiling("0.8") == (0.8, 0.8)
    assert parse_ceiling("0.75:0.84") == (0.75, 0.84)
    for text in ("x", "1.2", "0.4", "0.9:0.8", "0.7:0.8:0.9"):
        with pytest.raises(ConfigError, match="--judgements-ceiling"):
            parse_ceiling(text)
    told = " ".join(audited(Scorer(penalised), ceiling=(0.99, 1.0))["sentences"])
    assert "99.0 % to 100.0 %; it stays below that" in told
    assert "cannot show that a better model exists" in " ".join(audited(Scorer(penalised), ceiling=(0.8, 0.8))["sentences"])


# -- rewritings and probes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("contractions", "It is so. I don't.", "It's so. I do not."), ("synonyms", "Big birds start.", "Large birds begin."),
        ("white space", "A b. C d? E.", "A b.  C d?  E.\n"), ("case of the first letter", "The sea", "the sea"),
        ("contractions", "nothing here", "nothing here"), ("case of the first letter", "", ""),
    ],
)  # fmt: skip
def test_rewritings(name, text, expected):
    assert PARAPHRASES[name](text) == expected
    turns = (Message("assistant", text), Message("user", "It is?"))
    assert paraphrase(name, turns) == (Message("assistant", expected), Message("user", "It is?"))


def test_probes_are_what_they_are_called():
    made = {name: probe.make("Why?", "Good answer.", "Bad.") for name, probe in PROBES.items()}
    assert (made["empty"], made["one word"], made["the prompt copied"]) == ("", "Yes.", "Why?")
    assert made["chosen, three times"].count("Good answer.") == 3
    assert len(made["rejected, very long"]) >= 4 * len("Good answer.")
    assert made["rejected, injection first"].endswith("Bad.")
    assert len(PROBES["rejected, very long"].make("q", "a" * 9000, "b")) == 4000


# -- files -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A one-label classifier made and saved by plain transformers."""
    path = tmp_path_factory.mktemp("plain") / "classifier"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(resolve_model("tiny"), num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def file(tmp_path):
    rows = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected, "topic": f"t{i % 2}"} for i, p in enumerate(draw_pairs(40))]
    hostile = "<script>alert(1)</script>"
    rows.append({"prompt": f"{hostile} {{{{ 1 }}}}", "chosen": hostile, "rejected": "no", "topic": hostile})
    rows.append({"prompt": "Rank.", "answers": ["calm sea", "rude", "stone"], "ranking": [0, [1, 2]], "topic": "t0"})
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    return tmp_path / "pairs.jsonl"


def test_any_folder_with_one_label_is_audited_and_the_page_is_safe(folder, file, tmp_path, capsys):
    status = cli.main(["reward", "audit", str(folder), "--data", str(file), "--slice", "topic", "--output", str(tmp_path / "a.html")])
    assert status == 3  # it was never trained
    assert "Answers that nobody should prefer" in capsys.readouterr().out
    found, page = json.loads((tmp_path / "a.json").read_text()), (tmp_path / "a.html").read_text()
    assert found["data"]["pairs"] == 41 + 3
    assert found["data"]["ties"] == 1
    assert all(check["holds"] for check in found["invariances"])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)
    assert [row["value"] for table in found["slices"] if table["title"] == "topic" for row in table["rows"]][-2:] == ["t0", "t1"]
    for sentence in found["sentences"]:
        assert sentence in audit_text(found)


def test_what_cannot_be_asked_is_said(folder, file, tmp_path):
    with pytest.raises(ConfigError, match=r"--output .*\.html"):
        reward_audit_command(AuditRequest(str(folder), str(file), output=tmp_path / "a.txt"))
    with pytest.raises(ConfigError, match="--slice colour: no row has this column; known: answers, chosen"):
        reward_audit_command(AuditRequest(str(folder), str(file), slices=("colour",), output=tmp_path / "a.html"))
    with pytest.raises(ConfigError, match=r"(?s)--seed -1: must be at least 0.*--token-budget 0: must be at least 1"):
        reward_audit_command(AuditRequest(str(folder), str(file), output=tmp_path / "a.html", seed=-1, token_budget=0))
    pair, tie = Comparison("q", "a", "b"), Comparison("r", "a", "b", label=0.5)
    with pytest.raises(DataError, match="decided pairs of at least two prompts, got 1 with one that the model takes"):
        audit_reward(Audited("x", Scorer(penalised)), AuditPairs((pair, pair, tie), ({}, {}, {})))


def test_the_page_and_its_figures_are_not_written_over_what_is_read(file, tmp_path):
    linear = fit_linear(draw_pairs(40), ["log_length"]).save(tmp_path / "linear.json")
    before = linear.read_bytes()
    with pytest.raises(ConfigError, match=r"the figures beside --output, .*linear\.json: this file is read by this command"):
        reward_audit_command(AuditRequest(str(linear), str(file), output=tmp_path / "linear.html"))
    assert linear.read_bytes() == before


def test_a_bad_share_is_named_by_its_row_of_the_file(tmp_path):
    rows = [
        {"prompt": "Rank.", "answers": ["a", "b", "c"], "ranking": [0, 1, 2]},
        {"prompt": "q", "chosen": "a", "rejected": "b", "chosen_shown_first": 2},
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(DataError, match=r"1 of 2 rows cannot be used.*\n  row 2: `chosen_shown_first`"):
        load_pairs(str(tmp_path / "pairs.jsonl"), None, None, {})


def test_pairs_of_prompts_that_the_model_was_trained_on_are_left_out(file):
    every = load_pairs(str(file), "train", None, {})
    assert "yours to know" in every.notes[0]
    seen = {"prompts": " ".join(sorted({prompt_hash(pair.prompt) for pair in every.pairs[:5]}))}
    rest = load_pairs(str(file), "train", None, seen)
    prompts = {pair.prompt for pair in every.pairs[:5]}
    assert rest.num_seen == sum(pair.prompt in prompts for pair in every.pairs) >= 5
    assert not prompts & {pair.prompt for pair in rest.pairs}
    with pytest.raises(DataError, match="none is held out"):
        load_pairs(str(file), "train", 5, seen)


def test_a_linear_model_is_audited_too(file, tmp_path):
    path = fit_linear(draw_pairs(200), ["log_length", {"name": "good", "words": list(GOOD)}, {"name": "bad", "words": list(BAD)}]).save(
        tmp_path / "linear.json"
    )
    found, page, _ = reward_audit_command(AuditRequest(str(path), str(file), output=tmp_path / "b.html"))
    assert found["accuracy"]["estimate"] > 0.6
    assert page.read_text().startswith("<!doctype html>")
    assert render_reward_audit(found) == page.read_text()
    assert found["model_sha256"] == file_sha256(path)
    assert found["model_sha256"] in page.read_text()
