"""The documents keep their word: Python blocks run, commands exist, configurations and links are valid."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tether import cli
from tether.config import parse_config
from tether.labs import LABS
from tether.rewards.build import build_part

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where its code begins in the page."""

    page: Path
    language: str
    code: str
    line: int

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def _blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [Block(page, m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in FENCE.finditer(text)]
    return [block for block in found if block.language == language]


def _commands() -> list[tuple[str, str]]:
    lines = [(b.name, line) for page in PAGES for b in _blocks(page, "bash") for line in b.code.splitlines()]
    return [(name, line) for name, line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_in_order(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)  # as in the repository, but what a block writes goes elsewhere
    for folder in ("recipes", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    namespace: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for block in _blocks(page, "python"):
        # Empty lines before the code make line numbers in a traceback those of the page.
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)


def test_there_is_something_to_run():
    assert len(_blocks(ROOT / "docs" / "concepts.md", "python")) >= 6
    assert len(_blocks(ROOT / "README.md", "python")) >= 2


@pytest.mark.parametrize(("where", "line"), _commands())
def test_commands_exist(where: str, line: str):
    words = shlex.split(line, comments=True)
    match words:
        case ["make", target]:
            assert re.search(
                rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
            )
        case ["tether", *rest]:
            _check_tether(rest)
        case ["pip", "install", "-e", _]:
            pass
        case ["python", script]:
            assert (ROOT / script).is_file()
        case _:
            pytest.fail(f"{where}: a command that this test does not know: {line}")


def _check_tether(words: list[str]) -> None:
    app, rest = cli.app, list(words)
    while rest and rest[0] in set(app):
        app = app[rest.pop(0)]
    assert app is not cli.app, f"no command tether {words[0]}"
    known = {name for argument in app.assemble_argument_collection() for name in argument.names}
    if words[0] == "lab" and len(words) > 1:
        known |= {f"--{option.name}" for option in LABS[words[1]].options}
    options = {word for word in rest if word.startswith("--")}
    assert options <= known
    assert all((ROOT / word).is_file() for word in rest if word.startswith("recipes/"))


@pytest.mark.parametrize("block", [b for page in PAGES for b in _blocks(page, "toml")], ids=lambda b: b.name)
def test_configurations_are_valid(block: Block):
    config = parse_config(block.code, ".toml", source=block.name)
    parts = [part for stage in config.rl.values() for part in stage.rewards if part.kind not in {"learned", "linear"}]
    assert [build_part(part.kind, part.params) for part in parts] or config.direct or config.reward_model


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path):
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_tree_of_the_readme_names_every_room():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "src" / "tether").glob("*/__init__.py")}
    assert {room for room in rooms if f"  {room}/" not in text} == set()
    for name in ("recipes", "examples", "docs", "tests"):
        assert f"\n{name}/" in text
