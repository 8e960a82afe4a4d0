"""The page: complete, self-contained, and deaf to what models write."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from tether import cli
from tether.errors import RunError
from tether.metrics import REGISTRY
from tether.report import write_report
from tether.report.page import LARGEST_PAGE

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "</style><style>*{display:none}",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- ]]> -->",
    "' onmouseover='alert(1)",
    "\ud800 lone \x00 nul \x1b[31m",
    "\u202egnp.exe",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "&lt;b&gt; &amp;#x3c;",
]


class _Page(HTMLParser):
    """Tags with attributes, and the text of each script and style."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.texts: list[str] = []
        self._open = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data):
        if self._open in self.raw:
            self.raw[self._open].append(data)
        self.texts.append(data)

    def handle_endtag(self, tag):
        self._open = ""


def _page(folder) -> _Page:
    return _Page(write_report(folder).read_text(encoding="utf-8"))


def test_page_holds_every_part(make_run):
    page = _page(make_run())
    text = " ".join(page.texts).replace("\u00a0", " ")
    for wanted in (
        "which excludes zero",
        "nats per sequence",
        "grpo answers 2",
        "start answers 2",
        "80.0 %",
        "kl_k1_token",
        "c" * 64,
        "2.13",
        REGISTRY["kl_k1_sequence"].meaning,
        "Reward against KL",
    ):
        assert wanted in text


def test_page_asks_the_network_for_nothing(make_run):
    page = _page(make_run())
    links = [
        value
        for _, attrs in page.tags
        for name, value in attrs.items()
        if name in {"src", "href", "action", "data", "srcset", "poster"}
    ]
    assert all(link.startswith("#") for link in links)
    assert "url(" not in "".join(page.raw["style"])
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}


def test_only_our_style_and_script_are_admitted(make_run):
    page = _page(make_run())
    rules = next(
        attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    for kind in ("script", "style"):
        (source,) = page.raw[kind]
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in rules
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert not [
        attrs for _, attrs in page.tags if any(name == "style" or name.startswith("on") for name in attrs)
    ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_changes_no_tag(make_run, tmp_path, hostile: str):
    folder = make_run(text="hello")
    expected = _page(folder)
    folder.rename(tmp_path / "clean")
    dirty = _page(make_run(text=hostile, evaluation=_evaluation_of(hostile)))
    assert {tag for tag, _ in dirty.tags} <= {tag for tag, _ in expected.tags}
    assert len(dirty.raw["script"]) == len(dirty.raw["style"]) == 1
    assert not [
        attrs for _, attrs in dirty.tags if any(name.startswith("on") or name == "style" for name in attrs)
    ]
    shown = re.sub("[\ud800-\udfff\x00-\x08\x0b-\x1f]", "\ufffd", hostile)
    assert any(shown in text for text in dirty.texts)


def _evaluation_of(text: str) -> dict:
    sample = {"prompt": text, "completion": text, "score": 1.0, "stop_reason": text}
    policies = [
        {"name": name, "score": text, "mean": 1.0, "samples": [sample], "proxies": {text: 1.0}}
        for name in ("start", text)
    ]
    return {
        "prompts_sha256": text,
        "policies": policies,
        "gains": [{"before": "start", "after": text, "difference": "nan"}],
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e-320])
def test_any_number_can_be_drawn(make_run, value: float):
    page = _page(make_run(metrics={"reward": value, "loss": value}))
    paths = [attrs["d"] for tag, attrs in page.tags if tag == "path"]
    assert not [path for path in paths if "nan" in path or "inf" in path]


def test_empty_log_gives_a_page(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "events.jsonl").write_text("")
    assert "No step was logged" in " ".join(_page(tmp_path).texts)


def test_log_alone_gives_a_page(make_run):
    folder = make_run(evaluation=None, finished=False)
    for path in (*folder.glob("*/stage.json"), folder / "config.json", folder / "environment.json"):
        path.unlink()
    text = " ".join(_page(folder).texts)
    assert "unfinished" in text
    assert "config.json cannot be read" in text


def test_metric_of_another_version_is_shown(make_run):
    folder = make_run()
    line = json.dumps({"kind": "step", "stage": "rl.ppo", "step": 5, "metrics": {"of_the_future": 1.0}})
    with (folder / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    assert "Not in the metric registry" in " ".join(_page(folder).texts)


def test_long_run_stays_under_the_limit(make_run):
    text = "<&\"'" * 2000
    row = {"prompt": text, "completion": text, "score": 1.0, "stop_reason": "stop"}
    policies = [
        {"name": name, "score": "exact", "mean": 0.5, "samples": [row] * 500}
        for name in ("start", "ppo", "grpo")
    ]
    folder = make_run(text=text, steps=1500, evaluation={"policies": policies, "gains": []})
    path = write_report(folder)
    assert path.stat().st_size <= LARGEST_PAGE
    told = " ".join(" ".join(_page(folder).texts).split())
    assert re.search(r"The first \d+ of 500 prompts; evaluation\.json has the others\.", told)
    assert re.search(r"\d+ of 1500 answers Of evenly spaced steps; events\.jsonl has the others\.", told)
    assert re.search(r"Drawn with about \d+ of its points, every peak among them\.", told)
    assert "more characters not shown" in path.read_text(encoding="utf-8")


def test_page_is_replaced_whole_and_leaves_nothing_beside_it(make_run):
    folder = make_run()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert [path.name for path in folder.iterdir() if "report" in path.name] == ["report.html"]


def test_every_registered_metric_finds_its_chart(make_run):
    folder = make_run(metrics=dict.fromkeys(REGISTRY, 1.0))
    text = " ".join(_page(folder).texts)
    assert [name for name, metric in REGISTRY.items() if metric.meaning not in text] == []


def test_a_run_killed_at_its_start_gets_a_page_and_no_run_an_error(tmp_path, capsys):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"name": "early", "output": "runs", "model": {"path": "tiny"}}))
    assert cli.main(["report", str(folder)]) == 0
    text = " ".join(_page(folder).texts)
    assert "This run is unfinished" in text
    assert "events.jsonl cannot be read" in text
    for other in ("nothing", "early/report.html"):
        assert cli.main(["report", str(tmp_path / other)]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_a_run_error(make_run):
    folder = make_run()
    (folder / "report.html").mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        write_report(folder)
    assert [path.name for path in folder.iterdir() if path.name.endswith(".tmp")] == []


def test_units_and_masks_that_say_nothing_are_left_out(make_run):
    text = " ".join(_page(make_run(metrics={"learning_rate": 1e-5, "reward": 0.5})).texts)
    assert "Over: none" not in text
    assert "Over: scored rollouts; mean over rollouts." in text
    assert "Learning rate in force. Value of the last optimiser step." in text


def test_command_rebuilds_the_report(make_run, capsys):
    folder = make_run()
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip().replace("\n", "") == str(folder / "report.html")
    assert cli.main(["report", str(folder.parent)]) == 1
