"""Every algorithm has its page: the table is the one of the code, the example composes, pages have all their parts."""

from __future__ import annotations

import re
import xml.dom.minidom
from pathlib import Path

import pytest

from tether.algorithms.table import as_markdown
from tether.config import parse_config
from tether.config.presets import ACTOR_CRITIC, CRITIC_FREE, TITLES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
KINDS = [*ACTOR_CRITIC, *CRITIC_FREE]
PARTS = ("**Idea.**", "## Equations", "## Pseudo-code", "## Our choices", "## Pitfalls", "## Settings", "## Measured")


def overview():
    return (DOCS / "README.md").read_text(encoding="utf-8")


def test_the_overview_prints_the_table_of_the_code():
    """To renew it: python -c "from tether.algorithms.table import as_markdown; print(as_markdown())"."""
    shown = overview().split("<!-- parts: tether.algorithms.table.as_markdown -->")[1].split("<!-- end of parts -->")[0]
    assert shown.strip() == as_markdown()


def test_the_measured_table_has_every_preset():
    measured = overview().split("<!-- measured: python -m bench.toy_curves -->")[1].split("<!-- end of measured -->")[0]
    assert re.findall(r"^\| \[(\w+)\]", measured, re.MULTILINE) == [*KINDS, "online_dpo"]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_have_all_their_parts(kind):
    text = (DOCS / f"{kind}.md").read_text(encoding="utf-8")
    assert [part for part in PARTS if part not in text] == []
    assert f"arxiv.org/abs/{TITLES[kind][1]}" in text
    assert len(text.splitlines()) <= 80
    assert f"(img/{kind}.svg)" in text
    xml.dom.minidom.parse(str(DOCS / "img" / f"{kind}.svg"))
    (snippet,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert [stage.kind for stage in parse_config(snippet, ".toml").rl.values()] == [kind]


def test_the_composition_of_the_overview_replaces_what_it_names():
    (snippet,) = re.findall(r"```toml\n(.*?)```", overview(), re.DOTALL)
    config = parse_config(snippet, ".toml").rl["mine"]
    assert (config.advantage, config.std, config.surrogate, config.eps_low, config.eps_high) == ("rloo", "none", "cispo", None, 0.28)
    assert (config.aggregation, config.kl.where, config.kl.estimator, config.kl.beta) == ("token_mean", "loss", "k2", 0.01)
    assert (config.dynamic_sampling.max_batches, config.samples_per_prompt) == (2, 8)
