"""The commands `tether collect ...`: a database where people compare answers. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from tether.cli_collect_settings import init, settings
from tether.cli_collect_stats import simulate, stats

__all__ = ["collect_app"]

_FLAG = Parameter(negative=())
_Database = Annotated[str, Parameter(name="DATABASE", help="A SQLite file, or a postgresql:// URL.")]

collect_app = App(name="collect", help="Collect what people say of answers, in a database.", help_format="plaintext")


@collect_app.command(name="import")
def import_(
    database: _Database,
    file: Annotated[Path, Parameter(name="FILE", help="A .jsonl, .json, .parquet or .csv file, or tether:NAME.")],
    /,
    *,
    format: Annotated[
        Literal["trl", "hh", "ratings", "argilla", "label-studio", "judgements", "prompts"],
        Parameter(
            help="trl: prompt, chosen, rejected. hh: transcripts. ratings: rated completions. judgements: what export --rows judgements "
            "wrote. prompts: to draw answers to."
        ),
    ] = "trl",
    pairs: Annotated[Literal["ranking", "best_worst", "all"] | None, Parameter(help="ratings: all answers (ranking), or pairs.")] = None,
    question: Annotated[str, Parameter(help="argilla: the ranking or label question.")] = "",
    prompt_field: Annotated[str, Parameter(help="argilla, label-studio: field of the prompt.")] = "",
    answer_field: Annotated[tuple[str, ...], Parameter(help="argilla, label-studio: field of an answer; repeat it.", negative=())] = (),
    annotator: Annotated[str, Parameter(help='trl, hh, ratings: who judged; else the row\'s annotator or rater, else "import".')] = "",
    summaries: Annotated[
        Literal["refuse", "as_votes"], Parameter(help="trl: rows that sum up several judgements: refuse them, or one vote each.")
    ] = "refuse",
    gold: Annotated[bool, _FLAG, Parameter(help="trl, hh: test questions; what the row says is the known choice.")] = False,
    unjudged: Annotated[bool, _FLAG, Parameter(help="Take prompts, answers and items alone, to be judged anew.")] = False,
) -> None:
    """Take preference data into the database; the same rows a second time add nothing, also from a file of another name."""
    from tether.collect.exchange import formats, tools
    from tether.collect.exchange.imported import import_file, import_prompts
    from tether.collect.exchange.judgement_rows import judgements
    from tether.collect.store import Store

    _refuse_idle(f"--format {format}", {
        "--pairs": (pairs is not None, format == "ratings"),
        "--question": (question, format == "argilla"),
        "--prompt-field": (prompt_field, format in ("argilla", "label-studio")),
        "--answer-field": (answer_field, format in ("argilla", "label-studio")),
        "--annotator": (annotator, format in ("trl", "hh", "ratings")),
        "--summaries": (summaries != "refuse", format == "trl"),
        "--unjudged": (unjudged, format != "prompts"),
        "--gold": (gold, format in ("trl", "hh")),
    })  # fmt: skip
    if gold:
        _refuse_idle("--gold", {"--annotator": (annotator, False), "--unjudged": (unjudged, False)})
    if unjudged:
        _refuse_idle("--unjudged", {"--annotator": (annotator, False)})
    with Store.open(database) as store:
        if format == "prompts":
            added = import_prompts(store, file)
            print(f"{added.new} prompts added; {added.known} were there already")
            return
        parsers = {
            "trl": lambda: formats.trl(annotator),
            "hh": lambda: formats.hh(annotator),
            "ratings": lambda: formats.ratings(pairs or "ranking", annotator),
            "argilla": lambda: tools.argilla(question, prompt_field, answer_field),
            "label-studio": lambda: tools.label_studio(prompt_field, answer_field),
            "judgements": judgements,
        }
        print(import_file(store, file, parsers[format](), judged=not unjudged, summaries=summaries, gold=gold))


@collect_app.command
def export(
    database: _Database,
    file: Annotated[Path, Parameter(name="FILE", help="A .jsonl, .parquet or .csv file to write.")],
    /,
    *,
    rows: Annotated[
        Literal["pairs", "judgements", "prompts"],
        Parameter(help="A row per pair, which sums up its judgements, a row per judgement, or a row per prompt."),
    ] = "pairs",
    split: Annotated[Literal["train", "held_out", "all"], Parameter(help="Items of which prompts.")] = "train",
    ties: Annotated[Literal["leave_out", "both_orders"], Parameter(help="No row, or two rows with soft label 0.5.")] = "leave_out",
    both_bad: Annotated[Literal["leave_out", "as_tie"], Parameter(help="Pairs that more than half call both bad.")] = "leave_out",
    margin: Annotated[Literal["none", "strength"], Parameter(help="Margin 0, or the mean strength.")] = "none",
    slight: Annotated[float, Parameter(help="With --margin strength: margin of slightly better.")] = 1.0,
    much: Annotated[float, Parameter(help="With --margin strength: margin of much better.")] = 2.0,
    min_agreement: Annotated[
        float, Parameter(help="Leave out pairs with a smaller share of votes for the chosen answer; a tie has none.")
    ] = 0.0,
    gold: Annotated[bool, _FLAG, Parameter(help="Test questions too.")] = False,
    without: Annotated[tuple[str, ...], Parameter(help="Name or id of an annotator who does not count; repeat it.", negative=())] = (),
    form: Annotated[Literal["auto", "plain", "conversational"], Parameter(help="Strings or messages; auto: as stored.")] = "auto",
) -> None:
    """Write comparisons in TRL's preference format, the judgements one by one, or the prompts, and say what was left out.

    Example: tether collect export answers.db pairs.jsonl
    """
    from tether.collect.exchange.export import export_file
    from tether.collect.exchange.judgement_rows import export_judgements
    from tether.collect.exchange.prompt_rows import export_prompts
    from tether.collect.exchange.rule import Rule
    from tether.collect.store import Store

    rule = Rule(split, ties, both_bad, margin, slight, much, min_agreement, gold, without)
    usual = Rule()
    of_pairs = ("ties", "both_bad", "margin", "slight", "much", "min_agreement")
    shapes = {f"--{name.replace('_', '-')}": (getattr(rule, name) != getattr(usual, name), rows == "pairs") for name in of_pairs}
    _refuse_idle(f"--rows {rows}", shapes)
    if margin == "none":
        _refuse_idle("--margin none", {name: (shapes[name][0], False) for name in ("--slight", "--much")})
    _refuse_idle(f"--rows {rows}", {"--gold": (gold, rows != "prompts"), "--without": (without, rows != "prompts")})
    with Store.open(database) as store:
        if rows == "prompts":
            print(f"{export_prompts(store, file, split, form)} prompts ({split})")
        else:
            print(export_file(store, file, rule, form) if rows == "pairs" else export_judgements(store, file, rule, form))


@collect_app.command
def dump(database: _Database, file: Annotated[Path, Parameter(name="FILE", help="A JSONL file to write.")], /) -> None:
    """Write the whole database to one file, without loss."""
    from tether.collect.exchange.dump import dump as dump_store
    from tether.collect.store import Store

    with Store.open(database) as store:
        counts = dump_store(store, file)
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count))


@collect_app.command
def load(database: _Database, file: Annotated[Path, Parameter(name="FILE", help="A file of `tether collect dump`.")], /) -> None:
    """Make a new database from a dump; it may be of the other kind."""
    from tether.collect.exchange.dump import load as load_dump

    with load_dump(database, file) as store:
        print(store.place)


@collect_app.command
def annotators(
    database: _Database, /, *, add: Annotated[tuple[str, ...], Parameter(help="Name of a new annotator; repeat it.", negative=())] = ()
) -> None:
    """List the annotators with what they have done; add new ones."""
    from tether.collect.store import Store

    with Store.open(database) as store:
        store.add_annotators(add)
        for one in store.annotators():
            done = store.progress(one.id)
            print(f"{one.id}  {one.name}  judged {done.judged}, skipped {done.skipped}, open {done.open}")


@collect_app.command
def generate(
    database: _Database,
    /,
    *models: Annotated[
        str,
        Parameter(
            name="MODEL",
            help="Model folder, hub id, smollm2, tiny, a run (the policy it trained last), a stage of it (RUN/sft) or a checkpoint of it.",
        ),
    ],
    temperature: Annotated[tuple[float, ...], Parameter(help="Temperature; several give answers at each.", negative=())] = (1.0,),
    samples: Annotated[int, Parameter(help="Answers per prompt, model and temperature.")] = 2,
    max_new_tokens: Annotated[int, Parameter(help="Token budget of an answer.")] = 256,
    pairs: Annotated[int, Parameter(help="Items per prompt, drawn from the new answers; 0 makes none.")] = 1,
    limit: Annotated[int | None, Parameter(help="Only the first so many prompts of the database.")] = None,
    seed: Annotated[int, Parameter(help="Of the answers and of the pairs.")] = 0,
) -> None:
    """Draw answers to the prompts of the database, with where each comes from, and make items of them.

    Example: tether collect generate answers.db runs/a/sft smollm2 --temperature 0.7 --temperature 1.0
    """
    from tether.run.collect_generate import GenerateRequest, generate_answers

    request = GenerateRequest(models, temperature, samples, max_new_tokens, pairs, limit, seed)
    print(generate_answers(database, request, say=lambda text: print(text, file=sys.stderr)))


@collect_app.command
def score(
    database: _Database,
    /,
    *reward_models: Annotated[str, Parameter(name="REWARD_MODEL", help="Folder of a reward model; several are an ensemble.")],
) -> None:
    """Score every answer with reward models, for the strategies uncertainty and disagreement."""
    from tether.run.collect_score import score_answers

    for line in score_answers(database, reward_models):
        print(line)


@collect_app.command
def serve(
    database: _Database,
    /,
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1 and ::1; 0 takes a free one.")] = 0,
    host: Annotated[str, Parameter(help="Another address of this machine, such as 192.168.1.20; others can then reach it.")] = "",
    annotator: Annotated[tuple[str, ...], Parameter(help="A name that gets a personal link; repeat it.", negative=())] = (),
    names: Annotated[bool, _FLAG, Parameter(help="One link for all; whoever opens it types a name.")] = False,
) -> None:
    """Serve the page where people compare answers; says the links to open. Stop with Ctrl-C.

    Example: tether collect serve answers.db --annotator Ann --annotator Ben
    """
    from tether.errors import ConfigError

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a number from 0 (a free port) to 65535")
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"the page needs {' and '.join(missing)}; run: pip install 'tether[collect]'")
    from tether.collect.web.server import serve as serve_page

    serve_page(database, port=port, host=host, annotators=annotator, names=names)


def _refuse_idle(chosen: str, options: Mapping[str, tuple[object, bool]]) -> None:
    """``options``: option -> (it was given, it has an effect). Raises ConfigError for those that were given and have none."""
    from tether.errors import ConfigError

    if idle := [name for name, (given, acts) in options.items() if given and not acts]:
        raise ConfigError(f"{', '.join(idle)} has no effect with {chosen}; leave it out")


collect_app.command(init)
collect_app.command(settings)
collect_app.command(stats)
collect_app.command(simulate)
