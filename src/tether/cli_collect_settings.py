"""The commands `tether collect init` and `tether collect settings`: one list of options, which both take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from tether.collect.settings import Settings

__all__ = ["init", "settings"]

_Database = Annotated[str, Parameter(name="DATABASE", help="A SQLite file, or a postgresql:// URL.")]


def _word(value: Any) -> Any:
    return {True: "on", False: "off", None: "never"}[value] if value is None or isinstance(value, bool) else value


def _option(help: str, usual: Any = None) -> Parameter:
    """``usual``: what a new database gets, which is the default of ``Settings``; spelled out, since a help text loads no database."""
    return Parameter(help=help if usual is None else f"{help} (A new database: {_word(usual)}.)")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class _Options:
    """Fields of ``Settings`` by their names; None: not given."""

    question: Annotated[str | None, _option("What annotators are asked.", "Which answer is better?")] = None
    guidelines: Annotated[Path | None, _option("Markdown file with the guidelines.")] = None
    strengths: Annotated[bool | None, _option("Ask how much better.", True)] = None
    comments: Annotated[bool | None, _option("Offer a comment.", True)] = None
    overlap: Annotated[float | None, _option("Share of the items that several annotators judge.", 0.2)] = None
    judgements_per_overlap_item: Annotated[int | None, _option("How many judge such an item.", 2)] = None
    gold_share: Annotated[float | None, _option("Share of the turns that are test questions, where there are any.", 0.05)] = None
    strategy: Annotated[Literal["random", "uncertainty", "disagreement"] | None, _option("Which item comes next.", "random")] = None
    random_share: Annotated[float | None, _option("Share of the items that no strategy touches.", 0.2)] = None
    stratified: Annotated[bool | None, _option("Go round the prompts.", False)] = None
    break_after_minutes: Annotated[int | None, _option("When the page proposes a break; 0: never.", 30)] = None
    held_out_share: Annotated[float | None, _option("Share of the prompts kept for evaluation.", 0.1)] = None
    reservation_minutes: Annotated[
        int | None, _option("How long an item that was shown waits for its judgement.", 30)
    ] = None
    seed: Annotated[int | None, _option("Of every draw: sides, overlap, held-out prompts.", 0)] = None

    def given(self) -> dict[str, Any]:
        """What was given, as ``Settings`` takes it."""
        found = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        if "guidelines" in found:
            found["guidelines"] = _read(found["guidelines"])
        if found.get("break_after_minutes") == 0:
            found["break_after_minutes"] = None
        return found


_NONE = _Options()


def init(database: _Database, /, *, options: _Options = _NONE) -> None:
    """Make a new database. Example: tether collect init answers.db --overlap 0.3"""
    from tether.collect.settings import Settings
    from tether.collect.store import Store

    with Store.create(database, Settings.from_mapping(options.given())) as store:
        print(store.place)


def settings(database: _Database, /, *, options: _Options = _NONE) -> None:
    """Print the settings of a database, after changing those that are given.

    Judgements, sides and items that are there stay as they are; --overlap acts on items that are added later. A page that is being served
    goes by the settings it was started with. Example: tether collect settings answers.db --question "Which answer is safer?"
    """
    from tether.collect.store import Store

    with Store.open(database) as store:
        given = options.given()
        if given:
            before = asdict(store.settings)
            store.change_settings(**given)
        print(_told(store.settings))
        if given:
            print(_said({name for name in given if before[name] != given[name]}))


def _told(found: Settings) -> str:
    from tether.collect.settings import CHANGEABLE

    width = max(map(len, asdict(found)))
    lines = []
    for name, value in asdict(found).items():
        shown = (f"{len(value)} characters, below" if value else "none") if name == "guidelines" else _word(value)
        lines.append(f"{name:<{width}}  {shown}{'' if name in CHANGEABLE else '  (fixed)'}")
    return "\n".join([*lines, *(["", found.guidelines.rstrip(), ""] if found.guidelines else [])])


def _said(changed: set[str]) -> str:
    """What a change does, in one sentence each."""
    from tether.collect.settings import CHANGEABLE

    if not changed:
        return "nothing changed: the database had these settings"
    told = [f"changed: {', '.join(name for name in CHANGEABLE if name in changed)}. Judgements that were made and sides stay as they are."]
    if changed & {"overlap", "judgements_per_overlap_item"}:
        told.append("Items that are there want as many judgements as before; the new overlap is for items added from now on.")
    return " ".join([*told, "A running `tether collect serve` takes it up when it is started anew."])


def _read(path: Path) -> str:
    from tether.errors import ConfigError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--guidelines {path}: cannot be read as UTF-8 text ({error})") from error
