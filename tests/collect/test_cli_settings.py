"""`tether collect settings`: the options of `init`, what may change, and what a change leaves as it is."""

from __future__ import annotations

import shlex
from dataclasses import asdict, fields, replace
from typing import get_type_hints

import pytest
from small_collection import judge_all, small_store

from tether.cli import main
from tether.cli_collect_settings import _Options
from tether.collect.entries import Answer
from tether.collect.judgement import Item
from tether.collect.settings import CHANGEABLE, Settings
from tether.collect.store import Store
from tether.errors import ConfigError
from tether.types import Prompt


@pytest.fixture
def tether(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        return main(shlex.split(line)), *capsys.readouterr()

    return run


def test_every_setting_is_an_option_of_both():
    assert set(asdict(_Options())) == set(asdict(Settings()))
    shown = {field.name: str(get_type_hints(_Options, include_extras=True)[field.name].__metadata__[0].help) for field in fields(_Options)}
    words = {True: "on", False: "off"}
    for name, value in asdict(Settings()).items():
        told = words[value] if isinstance(value, bool) else value
        assert name == "guidelines" or shown[name].endswith(f"(A new database: {told}.)")


def test_settings_are_printed_and_changed(tether, tmp_path):
    (tmp_path / "rules.md").write_text("# Be kind\n", encoding="utf-8")
    tether("collect init a.db --seed 3 --break-after-minutes 0 --reservation-minutes 5")
    status, out, _ = tether("collect settings a.db")
    assert status == 0
    assert [line.split() for line in out.splitlines()[:4]] == [
        ["question", "Which", "answer", "is", "better?"], ["guidelines", "none"], ["strengths", "on"], ["comments", "on"],
    ]  # fmt: skip
    assert "seed                         3  (fixed)" in out
    assert "break_after_minutes          never\n" in out
    line = "collect settings a.db --question 'Safer?' --guidelines rules.md --no-strengths --no-comments --overlap 0.6 "
    line += "--judgements-per-overlap-item 4 --gold-share 0.1 --break-after-minutes 9 --reservation-minutes 7"
    status, out, _ = tether(line)
    assert status == 0
    assert "# Be kind" in out
    assert "Items that are there want as many judgements as before" in out
    changed = Settings(
        question="Safer?", guidelines="# Be kind\n", strengths=False, comments=False, overlap=0.6, judgements_per_overlap_item=4,
        gold_share=0.1, break_after_minutes=9, reservation_minutes=7, seed=3,
    )  # fmt: skip
    with Store.open("a.db") as store:
        assert store.settings == changed
    assert tether("collect settings a.db --strengths")[1].endswith("when it is started anew.\n")
    with Store.open("a.db") as store:
        assert store.settings == replace(changed, strengths=True)
    assert "nothing changed" in tether("collect settings a.db --strengths")[1]


@pytest.mark.parametrize("option", ["--seed 4", "--held-out-share 0.3", "--random-share 0.1", "--strategy uncertainty", "--stratified"])
def test_what_would_mix_two_designs_is_fixed(tether, option):
    tether("collect init a.db")
    status, out, err = tether(f"collect settings a.db --question New {option}")
    assert (status, out) == (2, "")
    assert "fixed when the database was made; only question" in err
    with Store.open("a.db") as store:
        assert store.settings == Settings()


def test_a_new_overlap_is_for_items_that_come_later(tmp_path):
    with small_store(tmp_path / "x.db", num_items=4, overlap=0.0) as store:
        judge_all(store)
        before, items = list(store.judgements()), list(store.items())
        store.change_settings(overlap=1.0, judgements_per_overlap_item=3)
        assert store.add_items(items).known == 4  # added again they are the same
        store.add_prompts([Prompt("new", "New?")])
        store.add_answers([Answer(name, "new", name) for name in "xy"])
        store.add_items([Item("new", "new", ("x", "y"))])
        assert [state.wanted for state in store.item_states()] == [1, 1, 1, 1, 3]
        assert list(store.judgements()) == before
        assert store.next_item("a1").item.item_id == "new"


def test_two_who_change_different_settings_keep_both(tmp_path):
    with small_store(tmp_path / "x.db") as one, Store.open(tmp_path / "x.db") as two:
        one.change_settings(question="First?")
        assert two.change_settings(comments=False).question == "First?"
        with pytest.raises(ConfigError, match="question is empty"):
            two.change_settings(question=" ")
    with Store.open(tmp_path / "x.db") as store:
        assert (store.settings.question, store.settings.comments) == ("First?", False)
    assert set(CHANGEABLE) < set(asdict(Settings()))
