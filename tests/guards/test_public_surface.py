"""What users may rely on: public names, command-line options, the documentation of every setting."""

from __future__ import annotations

import importlib
from pathlib import Path

import config_doc
import pytest

import tether
from tether import cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tether"

PUBLIC = [
    "Comparison", "Completion", "Demonstration", "Message", "Policy", "PolicyUpdater", "Prompt", "RewardModel", "RunConfig",
    "Sampling", "__version__", "dpo", "grpo", "load_config", "ppo", "rl", "update_policy",
]  # fmt: skip

COLLECT_SETTINGS = [
    "--break-after-minutes", "--comments", "--gold-share", "--guidelines", "--held-out-share", "--judgements-per-overlap-item",
    "--no-comments", "--no-stratified", "--no-strengths", "--overlap", "--question", "--random-share", "--reservation-minutes", "--seed",
    "--strategy", "--stratified", "--strengths",
]  # fmt: skip

OPTIONS = {
    "run": ["--accept-changes", "--dry-run", "--fresh", "--model", "--quiet", "CONFIG", "OVERRIDES"],
    "resume": ["--accept-changes", "--acknowledge", "--quiet", "RUN"],
    "watch": ["--port", "RUN"],
    "collect serve": ["--annotator", "--host", "--names", "--port", "DATABASE"],
    "evaluate": [
        "--against", "--config", "--json", "--judge", "--limit", "--max-new-tokens", "--num-seeds", "--output", "--prompts", "--reference",
        "--reward-model", "--samples", "--score", "--score-param", "--seed", "--temperature", "MODEL",
    ],
    "compare": ["--json", "--seed", "RUN"],
    "audit": ["--baseline", "--json", "--reward", "FILE"],
    "reward audit": [
        "--data", "--json", "--judgements-ceiling", "--limit", "--output", "--seed", "--slice", "--split", "--token-budget", "MODEL",
    ],
    "reward linear": ["--feature", "--l2", "--limit", "--output", "--split", "DATA"],
    "best-of-n": [
        "--gold", "--gold-param", "--json", "--limit", "--max-new-tokens", "--num-samples", "--output", "--plot", "--prompts", "--proxy",
        "--samples", "--seed", "--temperature", "--write-samples", "--write-sft", "MODEL",
    ],
    "verify-resume": ["--model", "CONFIG", "OVERRIDES"],
    "fetch": ["NAME"],
    "algorithms": [],
    "conformance": ["--config", "--json", "FILE"],
    "lab": ["--[KEYWORD]", "--json", "--plot", "NAME"],
    "config show": ["CONFIG", "OVERRIDES"],
    "config schema": [],
    "collect init": [*COLLECT_SETTINGS, "DATABASE"],
    "collect settings": [*COLLECT_SETTINGS, "DATABASE"],
    "collect import": [
        "--annotator", "--answer-field", "--format", "--gold", "--pairs", "--prompt-field", "--question", "--summaries", "--unjudged",
        "DATABASE", "FILE",
    ],
    "collect export": [
        "--both-bad", "--form", "--gold", "--margin", "--min-agreement", "--much", "--rows", "--slight", "--split", "--ties",
        "--without", "DATABASE", "FILE",
    ],
    "collect dump": ["DATABASE", "FILE"],
    "collect load": ["DATABASE", "FILE"],
    "collect annotators": ["--add", "DATABASE"],
    "collect generate": ["--limit", "--max-new-tokens", "--pairs", "--samples", "--seed", "--temperature", "DATABASE", "MODEL"],
    "collect score": ["DATABASE", "REWARD_MODEL"],
    "collect stats": ["--json", "--output", "--seed", "--without", "DATABASE"],
    "collect simulate": [
        "--annotators", "--answers", "--careless", "--json", "--judgements", "--length-bias", "--overlap", "--position-bias", "--prompts",
        "--seed", "--temperature", "--tie-threshold",
    ],
    "metrics": [],
    "report": ["RUN"],
}


def _options(command: str) -> list[str]:
    app = cli.app
    for name in command.split():
        app = app[name]
    collection = app.assemble_argument_collection()
    return sorted(name for argument in collection for name in (argument.names or (argument.name,)) if name != "*")  # *: a group of options


def _commands(app=cli.app, prefix: str = "") -> set[str]:
    found = set()
    for name in app:
        if not name.startswith("-"):
            nested = _commands(app[name], f"{prefix}{name} ")
            found |= nested or {prefix + name}
    return found


def test_public_names_are_pinned_and_sorted():
    assert tether.__all__ == PUBLIC
    assert sorted(tether.__all__) == tether.__all__
    assert dir(tether) == PUBLIC


@pytest.mark.parametrize("name", [name for name in PUBLIC if not name.startswith("_")])
def test_public_name_exists_and_is_documented(name: str):
    assert getattr(tether, name).__doc__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tether.nothing  # noqa: B018


def test_commands_are_pinned():
    assert _commands() == set(OPTIONS)


@pytest.mark.parametrize("command", sorted(OPTIONS))
def test_options_are_pinned(command: str):
    assert _options(command) == OPTIONS[command]


@pytest.mark.parametrize(("path", "model"), config_doc.sections())
def test_every_setting_says_what_it_does(path: str, model: type):
    assert (model.__doc__ or "").strip()
    silent = [
        name for name, field in model.model_fields.items() if len((field.description or "").split()) < 2
    ]
    assert silent == []


def test_configuration_page_is_up_to_date():
    assert config_doc.TARGET.read_text(encoding="utf-8") == config_doc.document(), (
        "run: python tools/config_doc.py"
    )


def test_configuration_page_names_every_setting():
    page = config_doc.TARGET.read_text(encoding="utf-8")
    missing = [
        f"{path}.{name}"
        for path, model in config_doc.sections()
        for name in model.model_fields
        if f"| `{name}` |" not in page
    ]
    assert missing == []


def test_modules_of_the_public_surface_say_what_they_are():
    rooms = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    assert [
        room.name
        for room in rooms
        if not (importlib.import_module(f"tether.{room.name}").__doc__ or "").strip()
    ] == []
