"""`tether best-of-n`: against brute force and a known optimum, the files that it writes and reads, and what cannot be asked."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

from tether import cli
from tether.data.load import load_rows
from tether.errors import ConfigError, DataError
from tether.records import read_demonstrations, read_prompts, write_jsonl
from tether.report.page import render_svg
from tether.rewards.linear import fit_linear
from tether.rewards.seen import prompt_hashes
from tether.run.best_of_n import Pool, ScoredSample, as_text, best_of_n, curve_charts, sft_rows
from tether.run.best_of_n_command import BestOfNRequest, best_of_n_command
from tether.types import Comparison, Message


def pool(number, scores, golds=None, **more):
    golds = golds or [math.nan] * len(scores)
    samples = tuple(ScoredSample(f"answer {k}", p, g, **more) for k, (p, g) in enumerate(zip(scores, golds, strict=True)))
    return Pool(f"p{number}", f"Question {number}?", samples)


def random_pools(prompts=6, samples=6, seed=0):
    draw = random.Random(seed)
    return [pool(p, [draw.randint(0, 4) for _ in range(samples)], [draw.gauss(0, 1) for _ in range(samples)]) for p in range(prompts)]


def test_the_curve_is_the_mean_over_all_subsets():
    pools = random_pools()
    found = best_of_n(pools)
    assert [row["n"] for row in found["rows"]] == [1, 2, 4, 6]
    for row in found["rows"]:
        by_prompt = []
        for one in pools:
            picked = [max(subset, key=lambda i: (one.samples[i].proxy, -i)) for subset in itertools.combinations(range(6), row["n"])]
            by_prompt.append(sum(one.samples[i].gold for i in picked) / len(picked))
        assert row["gold"]["estimate"] == pytest.approx(sum(by_prompt) / len(by_prompt))
        assert row["gold"]["low"] <= row["gold"]["estimate"] <= row["gold"]["high"]
        assert row["kl_bound"] == pytest.approx(math.log(row["n"]) - (row["n"] - 1) / row["n"])
        assert row["win_rate_bound"] == pytest.approx(row["n"] / (row["n"] + 1))


def test_the_best_of_uniform_scores_is_n_over_n_plus_1():
    draw = random.Random(1)
    pools = [pool(p, [draw.random() for _ in range(32)]) for p in range(200)]
    for row in best_of_n(pools)["rows"]:
        assert row["proxy"]["low"] - 0.01 < row["n"] / (row["n"] + 1) < row["proxy"]["high"] + 0.01


def test_over_optimisation_is_said_and_no_gold_is_said():
    golds = [0.0, 1.0, 2.0, -9.0]
    told = best_of_n([pool(p, [0, 1, 2, 3], golds) for p in range(4)])
    assert "Gold is highest at n = 1" in told["notes"][1] or "Gold is highest at n = 2" in told["notes"][1]
    without = best_of_n([pool(0, [1, 2])])
    assert without["rows"][0]["gold"] is None
    assert "No gold score" in without["notes"][1]
    assert without["rows"][0]["proxy"]["low"] is None  # one prompt says nothing of the spread over prompts
    assert "an upper bound" in as_text(without)


def test_a_fall_of_gold_is_told_from_the_spread_between_prompts():
    """Prompts differ by tens, gold falls by three at every one of them: intervals overlap, the paired difference is sure."""
    pools = [pool(p, [0, 1, 2, 3], [10 * p + gold for gold in (0.0, 1.0, 2.0, -3.0)]) for p in range(12)]
    found = best_of_n(pools)
    first, last = found["rows"][0]["gold"], found["rows"][-1]["gold"]
    assert last["high"] > first["low"]
    assert "Gold is highest at n = 1 and 3 [3, 3] lower at n = 4 (paired over prompts, 95 %" in found["notes"][1]
    assert len(best_of_n(random_pools(prompts=30, samples=8))["notes"]) == 1  # gold that knows nothing of the proxy does not fall


def test_one_answer_without_gold_is_counted_and_not_called_no_gold():
    found = best_of_n([pool(0, [0, 1, 2, 3], [0.0, 1.0, math.nan, 2.0]), pool(1, [0, 1, 2, math.nan], [1.0] * 4)])
    assert found["samples_without_gold"] == 1
    assert {row["gold"] for row in found["rows"]} == {None}
    assert "1 of 7 scored answers have no gold score" in found["notes"][1]
    assert "No gold score:" not in as_text(found)


def test_intervals_are_named_by_their_confidence():
    found = best_of_n(random_pools(), confidence=0.9)
    assert "in brackets 90 % bootstrap intervals over prompts" in as_text(found)
    assert [line.name for line in curve_charts(found)[0].lines][:3] == ["proxy", "proxy, 90 % low", "proxy, 90 % high"]


def test_what_is_not_scored_is_counted_and_left_out():
    pools = [pool(0, [1, math.nan, 3, 2]), pool(1, [math.nan, math.nan]), pool(2, [1, 2])]
    found = best_of_n(pools)
    assert (found["prompts"], found["prompts_without_a_score"], found["unscored_samples"]) == (2, 1, 3)
    assert found["samples_per_prompt"] == [2, 3]
    assert found["rows"][-1]["n"] == 2
    assert "3 answers without a proxy score are left out" in as_text(found)
    with pytest.raises(DataError, match="no prompt has"):
        best_of_n([pool(0, [math.nan])])


def test_pictures_are_files_of_their_own():
    found = best_of_n(random_pools())
    charts = curve_charts(found)
    assert "a bound" in charts[0].x_label
    svg = render_svg(charts[0])
    assert svg.startswith("<svg xmlns=")
    assert svg.count("<svg") == 1
    assert "<script" not in svg


def test_demonstrations_are_the_best_finished_answers_with_where_they_come_from():
    told = [("cut", 9, math.nan, True), ("  ", 8), ("first", 5, 1.0), ("second", 5), ("x", 1)]
    samples = tuple(ScoredSample(*one) for one in told)
    chat = Pool("b", (Message("user", "Hi?"),), (ScoredSample("Hello.", 1.0),))
    rows, without = sft_rows([Pool("a", "Q?", samples), chat, Pool("c", "Q2?", (ScoredSample("cut", 1, cut=True),))], {"policy": "mine"})
    assert without == 1
    assert [row["completion"] for row in rows] == ["first", [{"role": "assistant", "content": "Hello."}]]
    assert rows[0]["provenance"] == {"method": "best-of-n", "n": 3, "sample_index": 2, "proxy": 5, "gold": 1.0, "policy": "mine"}
    assert len(read_demonstrations(rows, "f")) == 2


# -- the command -------------------------------------------------------------------------------------------------------------


def test_from_a_model_to_samples_and_back_and_to_demonstrations(tmp_path, capsys):
    pairs = [Comparison(f"q{i}", "a b c d e", "a b" + " c" * (i % 2)) for i in range(20)]
    proxy = fit_linear(pairs, ["length"]).save(tmp_path / "proxy.json")
    files = {"--write-samples": "s.jsonl", "--write-sft": "sft.jsonl", "--plot": "c.svg", "--output": "c.json"}
    told = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    sampled = ["--prompts", "tether:quickstart_prompts_heldout.jsonl", "--limit", "4", "--num-samples", "5", "--max-new-tokens", "20"]
    assert cli.main(["best-of-n", "tiny", *sampled, "--proxy", str(proxy), "--gold", "plainspoken", *told]) == 0
    first = json.loads((tmp_path / "c.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert {row["provenance"]["policy"] for row in rows} == {"tiny"}
    assert "KL bound" in capsys.readouterr().out
    request = BestOfNRequest("proxy", "gold", samples=str(tmp_path / "s.jsonl"), plot=tmp_path / "d.html")
    again, written = best_of_n_command(request)
    assert again["rows"] == first["rows"]
    assert written == [tmp_path / "d.html"]
    assert again["origin"]["samples"] == "s.jsonl"


def test_a_reward_model_folder_is_a_proxy(tmp_path):
    from tether.models.resolve import resolve_model
    from tether.models.reward import RewardModel

    prompts = "tether:quickstart_prompts_heldout.jsonl"
    model = RewardModel.from_base(resolve_model("tiny"), seed=1)
    model.fitted_to = {"prompts": prompt_hashes([read_prompts(load_rows(prompts, limit=1).rows, prompts)[0].text])}
    model.save(tmp_path / "run" / "reward_model")
    (tmp_path / "run" / "events.jsonl").write_text("")  # a run stands for its reward model
    request = BestOfNRequest(str(tmp_path / "run"), model="tiny", prompts=prompts, limit=2, num_samples=3, max_new_tokens=4)
    found, _ = best_of_n_command(request)
    assert "The proxy was trained on 1 of these 2 prompts: its scores there are not held out" in found["notes"][-1]
    assert [row["n"] for row in found["rows"]] == [1, 2, 3]
    assert found["rows"][0]["proxy"]["estimate"] < found["rows"][-1]["proxy"]["estimate"]
    assert len(found["origin"]["proxy_sha256"]) == 64


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({}, "name a MODEL to sample from, or a file"), ({"model": "tiny", "samples": "f"}, "one of the two"),
        ({"model": "tiny"}, "--prompts: which"),
        ({"samples": "f", "proxy": "p", "prompts": "x"}, "--prompts has no effect"), ({"samples": "f"}, "--proxy"),
        ({"samples": "f", "proxy": "p", "plot": "c.png"}, r"\.svg or \.html"),
        ({"samples": "f", "proxy": "p", "output": "no/c.json"}, "no does not"),
        ({"model": "tiny", "prompts": "f", "proxy": "p", "num_samples": 0}, "at least 1"),
        ({"samples": "f", "proxy": "p", "num_samples": 8}, "--num-samples has no effect with --samples"),
        ({"samples": "f", "proxy": "p", "temperature": 0.5}, "--temperature has no effect with --samples"),
        ({"model": "tiny", "prompts": "f", "proxy": "p", "gold_params": {"column": "a"}}, "--gold-param has no effect without --gold"),
        ({"samples": "f", "proxy": "p", "seed": -1}, "--seed -1: must be at least 0"),
        ({"samples": "s.jsonl", "proxy": "p", "write_sft": "s.jsonl"}, r"--write-sft s\.jsonl: this file is read by this command"),
        ({"samples": "f", "proxy": "p", "plot": "c.html", "output": "c.html"}, r"--plot c\.html: this file is what --output writes, too"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(told, match):
    from pathlib import Path

    paths = {name: Path(told[name]) for name in ("plot", "output", "write_sft") if name in told}
    with pytest.raises(ConfigError, match=match):
        best_of_n_command(BestOfNRequest(**{**told, **paths}))


def test_bad_rows_of_a_file_are_named_together(tmp_path):
    rows = [
        {"prompt": "q", "completion": "a", "p": 1}, {"prompt": "q", "completion": "a", "p": "x"}, {"prompt": "q", "completion": 3, "p": 1},
        {"prompt": "q", "completion": "a", "q": 1}, {"prompt": "r", "prompt_id": "1", "completion": "a", "p": None},
        {"prompt": "s", "prompt_id": "1", "completion": "a", "p": 1}, {"prompt": "q", "completion": "a", "p": 1, "cut": "false"},
    ]  # fmt: skip
    write_jsonl(tmp_path / "s.jsonl", rows)
    expected = (
        r"(?s)row 2: `p` must be.*row 3: `completion` must be.*row 4: no column `p`.*row 6: prompt_id '1' has another prompt"
        r".*row 7: `cut` must be true, false or left out, got 'false'"
    )
    with pytest.raises(DataError, match=expected):
        best_of_n_command(BestOfNRequest("p", samples=str(tmp_path / "s.jsonl")))
