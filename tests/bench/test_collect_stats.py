"""The benchmark of summaries measures what it says; no test asserts a time."""

from __future__ import annotations

import json

from bench.collect_stats import main


def test_it_prints_counts_and_seconds(capsys):
    assert main(["--judgements", "300", "--repeat", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 300 <= found["judgements"] < 330
    assert all(found[name] >= 0 for name in ("read_s", "summary_s", "text_and_page_s"))
