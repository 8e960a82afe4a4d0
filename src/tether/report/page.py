"""One self-contained HTML file: no request leaves it, and nothing a model wrote can become markup or script.

Every value goes through Jinja2's autoescape; the only trusted text is our own page.css and page.js, and the
Content-Security-Policy of the page admits nothing but their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tether.errors import RunError
from tether.files import write_atomic
from tether.report.charts import HEIGHT, WIDTH, Chart
from tether.report.curves import families
from tether.report.limits import LIMITS, Limits
from tether.report.read import RunRecord, read_run
from tether.report.tether_plot import tradeoffs
from tether.report.texts import cut, held_out, num_held_out, training
from tether.report.words import POLICY_COLUMNS, hashes, policy_rows, summary

__all__ = [
    "LARGEST_PAGE", "asset", "content_policy", "fill", "render", "render_document", "render_main", "render_page", "render_svg",
    "told", "write_report",
]  # fmt: skip

LARGEST_PAGE = 5 * 10**6  # bytes

_MOST_MESSAGES, _MOST_ALERTS, _MOST_MOMENTS = 50, 100, 200  # the latest are shown
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]"
)  # not allowed in HTML, or not encodable


def write_report(folder: str | Path) -> Path:
    """Read the run in ``folder`` and write ``folder/report.html``, whole or not at all. Raises RunError
    where there is no run, or no report may be written.
    """
    target = Path(folder) / "report.html"
    page = render(read_run(folder))
    try:
        write_atomic(target, page)
    except OSError as error:
        raise RunError(f"{target} cannot be written ({error.strerror or error}); make room, or allow writing there") from error
    return target


def render(run: RunRecord) -> str:
    """The file. Long runs show fewer texts and points, so that it stays under ``LARGEST_PAGE`` bytes."""
    css, script = asset("page.css"), asset("page.js")
    return render_page(run.name, render_main(run), css, script, content_policy(css, script))


def render_page(title: str, main: str, css: str, script: str, policy: str, *, live: bool = False) -> str:
    """A whole document around ``main``; ``live``: with the line that says when it was brought up to date."""
    page = _environment().get_template("page.html")
    return _safe(page.render(title=title, main=Markup(main), css=Markup(css), script=Markup(script), policy=policy, live=live))


def render_document(title: str, template: str, values: Mapping[str, Any]) -> str:
    """A whole page of another kind: ``template`` with what it names."""
    css, script = asset("page.css"), asset("page.js")
    main = _safe(_environment().get_template(template).render({"width": WIDTH, "height": HEIGHT, **values}))
    return render_page(title, main, css, script, content_policy(css, script))


def render_svg(chart: Chart) -> str:
    """One chart as a file of its own, with the style of the pages."""
    picture = _environment().get_template("picture.svg")
    style = Markup(_SVG_STYLE + asset("page.css"))
    return _safe(picture.render(width=WIDTH, height=HEIGHT, chart=chart, style=style)).strip() + "\n"


_SVG_STYLE = "svg { background: var(--paper); font-family: system-ui, sans-serif; } "


def render_main(run: RunRecord) -> str:
    """What stands between <body> and the script, in the most detail that stays small enough."""
    text = ""
    for limits in LIMITS:
        text = _safe(_environment().get_template("main.html").render(_values(run, limits)))
        if len(text.encode("utf-8")) <= LARGEST_PAGE - _FRAME:
            break
    return text


_FRAME = 10**5  # bytes left for style, script and head


def _values(run: RunRecord, limits: Limits) -> dict[str, Any]:
    """What the template names."""
    return {
        "run": run,
        "width": WIDTH,
        "height": HEIGHT,
        "summary": summary(run),
        "columns": POLICY_COLUMNS,
        "policies": policy_rows(run),
        "families": list(families(run, limits)),
        "tradeoffs": list(tradeoffs(run, limits)),
        "held_out": held_out(run, limits),
        "num_held_out": num_held_out(run),
        "training": list(training(run, limits)),
        "hashes": hashes(run),
        "config": cut(_pretty(run.config), 50 * limits.characters).text,
        "environment": list(_flat(run.environment)),
        "alerts": run.alerts[-_MOST_ALERTS:],
        "earlier_alerts": max(0, len(run.alerts) - _MOST_ALERTS),
        "history": run.history[-_MOST_MOMENTS:],
        "earlier_moments": max(0, len(run.history) - _MOST_MOMENTS),
        "messages": [cut(text, limits.characters).text for text in run.messages[-_MOST_MESSAGES:]],
        "earlier": max(0, len(run.messages) - _MOST_MESSAGES),
        "shorten": lambda text: cut(text, limits.characters).text,
    }


def told(text: str) -> Markup:
    """Our own sentences, written for a terminal, as markup: everything is escaped, and what stands between backticks becomes <code>. The
    filter ``told`` of every template; not meant for what people and models wrote.
    """
    kept = _UNIT.sub("\\1\u00a0\\2", str(escape(text)))
    return Markup(_CODE.sub(r"<code>\1</code>", kept))


_CODE = re.compile("`+([^`]+)`+")
_UNIT = re.compile(r"(\d) (%|s\b)")  # stay on one line


def asset(name: str) -> str:
    """A file of the templates folder as text."""
    return (resources.files("tether.report") / "templates" / name).read_text(encoding="utf-8")


def content_policy(css: str, script: str, more: str = "") -> str:
    """Content-Security-Policy: nothing is loaded, and only our own inline style and script run; ``more`` admits more."""

    def allowed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    own = f"style-src {allowed(css)}; script-src {allowed(script)}"
    return f"default-src 'none'; {own}; {more}base-uri 'none'; form-action 'none'"


def fill(template: str, values: Mapping[str, Any], *, package: str) -> str:
    """A template of another package with its values escaped, for pages in the manner of the report; it may import ``draw.html`` of this
    one.
    """
    return _safe(_environment(package).get_template(template).render({"width": WIDTH, "height": HEIGHT, **values}))


@cache
def _environment(package: str = "tether.report") -> Environment:
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("tether.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["told"] = told
    return found


def _safe(text: str) -> str:
    return _UNSAFE.sub("\ufffd", text)


def _pretty(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False) if config else ""


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in list(value.items())[:100]:
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, "unknown" if value is None else cut(str(value), 500).text
