"""Sentences that were written for a terminal, on a page: code is code, no backtick is left, nothing becomes markup."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tether.collect.judgement import Choice, Item, Judgement
from tether.collect.stats.page import page
from tether.collect.stats.summary import summarise
from tether.report.dots import dot_chart
from tether.report.page import fill, render, render_document, told
from tether.report.read import read_run


def test_code_in_a_sentence():
    assert told("go on with `tether resume`.") == "go on with <code>tether resume</code>."
    assert told("`a` and ``b``") == "<code>a</code> and <code>b</code>"
    assert told("<b>`<i>`</b>") == "&lt;b&gt;<code>&lt;i&gt;</code>&lt;/b&gt;"
    assert told("60 % in 3 s [1, 2]") == "60\u00a0% in 3\u00a0s [1, 2]"
    assert told("30 strings") == "30 strings"


def _ours(text: str) -> str:
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def test_no_backtick_on_the_page_of_statistics():
    """Every figure outside its band, so that all advice is there; a person whose name needs quoting."""
    items = [Item(f"i{n}", f"p{n}", (f"a{n}", f"b{n}"), Choice.FIRST) for n in range(40)]
    said = [
        Judgement(f"{who}{n}", f"i{n}", who, Choice.SECOND, items[n].answers, seconds=1.0 if who == "O'Neil" else 20.0)
        for who in ("O'Neil", "Ben", "Emil") for n in range(40)
    ]  # fmt: skip
    found = summarise(said, items, {})
    assert any(row.conduct.advice.count("`") == 2 for row in found.annotators)
    outside = tuple(replace(one, value=5.0, low=5.0, high=5.0, good=(0.0, 1.0), missing="see `there`") for one in found.figures)
    shown = page(replace(found, figures=outside, warnings=("a `warning`",)))
    assert "<code>tether collect simulate</code>" in shown
    quoted = "&#39;O&#39;&#34;&#39;&#34;&#39;Neil&#39;"  # as a shell wants it
    assert f"<code>tether collect export DATABASE pairs.jsonl --without {quoted}</code>" in shown
    assert "`" not in _ours(shown)


def test_no_backtick_on_a_page_of_tables():
    values = {
        "title": "t", "subtitle": "of `x`", "flags": [{"name": "f", "text": "use `y`"}], "sentences": ["see `z`"], "charts": [],
        "hashes": [], "tables": [("heading", ("a",), [("b",)], "with `n`")],
    }  # fmt: skip
    shown = render_document("t", "plain.html", values)
    assert all(f"<code>{name}</code>" in shown for name in "xyzn")
    assert "`" not in _ours(shown)


def test_no_backtick_of_ours_in_a_report(make_run):
    shown = render(replace(
        read_run(make_run()), problems=("run `a`",), messages=("see `b`",),
    ))  # fmt: skip
    assert "<code>a</code>" in shown
    assert "<code>b</code>" in shown


ROWS = [("Ann", 0.9, 0.8, 0.95), ("Ben", 0.5, 0.4, 0.6), ("a very long name indeed", 0.1, -math.inf, math.inf)]


def test_dots_stand_in_rows_without_a_line_between_them():
    chart = dot_chart("Hasty", "share", "of `x`", ROWS, reference=(0.5, "half"), bounds=(0, 1), marked=frozenset({"Ann"}))
    xs, ys = [row.x for row in chart.rows], [row.y for row in chart.rows]
    assert xs == sorted(xs, reverse=True)
    assert ys == sorted(ys)
    assert all(row.low <= row.x <= row.high for row in chart.rows)
    assert chart.reference is not None
    assert chart.reference[0] == chart.rows[1].x
    assert (chart.rows[2].low, chart.rows[2].high) == (chart.x_ticks[0][0], chart.x_ticks[-1][0])  # no end: as far as the frame
    told_in_words = "Ann: 0.9 [0.8, 0.95]; Ben: 0.5 [0.4, 0.6]; a very long name indeed: 0.1, too little for an interval"
    assert chart.summary == f"Hasty (share). {told_in_words}"
    assert chart.legend == "dot: value; bar: 95% interval; line: half; orange: named"
    assert [row.marked for row in chart.rows] == [True, False, False]
    taller = dot_chart("Hasty", "share", "", ROWS * 10)
    assert taller.height - chart.height == pytest.approx(27 * (ys[1] - ys[0]))


def test_dots_need_a_value():
    with pytest.raises(ValueError, match="no value to draw"):
        dot_chart("Hasty", "share", "", [("Ann", math.nan, 0.0, 1.0)])
    alone = dot_chart("Hasty", "share", "", [("Ann", 0.3, 0.3, 0.3)])
    assert alone.rows[0].x > 104


def test_a_dot_chart_is_drawn_and_escaped():
    values = {
        "title": "t", "summary": None, "sentences": [], "named": [], "nobody": "", "charts": [], "columns": (), "meanings": (),
        "more_people": 0,
        "people": [("<b>", ())], "pairs": [], "hasty": [], "pauses": [], "figures": [], "confidence": "",
        "dots": [dot_chart("<i>", "share", "", [("<b>Ann", 0.3, 0.2, 0.4)])],
    }  # fmt: skip

    class Empty:
        warnings = skip_reasons = hasty = pauses = ()
        seed = 0

    shown = fill("stats.html", {**values, "summary": Empty()}, package="tether.collect.stats")
    assert "<b>Ann" not in shown
    assert shown.count('class="dot"') == 1
    assert 'class="line' not in shown
