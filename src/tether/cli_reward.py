"""The commands `tether reward audit`, `tether reward linear` and `tether best-of-n`. Heavy modules are imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

__all__ = ["Flagged", "best_of_n", "reward_app"]

_FLAG = Parameter(negative=())

reward_app = App(name="reward", help="Look at reward models, and fit one that can be read.", help_format="plaintext")


class Flagged(Exception):
    """A command did its work and found something that a person should look at; carries the exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


@reward_app.command
def audit(
    model: Annotated[str, Parameter(name="MODEL", help="Reward model (any HF classifier with one label), a run, or a linear one's JSON.")],
    /,
    *,
    data: Annotated[str, Parameter(help="Pairs or single judgements not trained on: a file, folder, hub id or collect database.")],
    split: Annotated[str | None, Parameter(help="Split of a folder or hub id (else train), or of a database (else held_out).")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many rows.")] = None,
    judgements_ceiling: Annotated[str | None, Parameter(help="Accuracy that the raters' agreement allows: 0.8 or 0.75:0.84.")] = None,
    slice_by: Annotated[
        tuple[str, ...], Parameter(name="--slice", help="Column to make a table by; of a database also annotator, side.", negative=())
    ] = (),
    output: Annotated[Path, Parameter(help="The page; its figures lie beside it as .json.")] = Path("reward-audit.html"),
    seed: Annotated[int, Parameter(help="Seed of the bootstrap.")] = 0,
    token_budget: Annotated[int, Parameter(help="Most padded tokens of a batch.")] = 16_384,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Accuracy, calibration, biases, invariances and probes of a reward model, as a page. Status 3 if something is flagged.

    Example: tether reward audit runs/quickstart/reward_model --data tether:quickstart_comparisons.jsonl
    """
    from tether.report.reward_audit import audit_text
    from tether.run.reward_audit.audit import AuditRequest, reward_audit_command

    request = AuditRequest(model, data, split, limit, judgements_ceiling, slice_by, output, seed, token_budget)
    found, page, figures = reward_audit_command(request)
    print(figures.read_text(encoding="utf-8") if as_json else f"{audit_text(found)}\n\n{page}\n{figures}")
    if found["flags"]:
        raise Flagged(3)


@reward_app.command
def linear(
    data: Annotated[str, Parameter(name="DATA", help="Comparisons: a file, a folder, a hub id or a database of tether collect.")],
    /,
    *,
    output: Annotated[Path, Parameter(help="The model, a JSON file.")] = Path("linear-reward.json"),
    feature: Annotated[tuple[str, ...], Parameter(help="A feature by name, or as JSON: see docs/reward-models.md.", negative=())] = (),
    l2: Annotated[float, Parameter(help="Weight of |w|^2 / 2 beside the mean loss.")] = 1e-3,
    split: Annotated[str | None, Parameter(help="Split of a folder or hub id, or of a database; train if none is named.")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many rows.")] = None,
) -> None:
    """Fit a reward model that weighs named features of an answer, print its weights, and save it as a reward part.

    Example: tether reward linear tether:quickstart_comparisons.jsonl --feature log_length --feature hedges
    """
    from tether.run.linear_command import linear_command

    model, written = linear_command(data, output, feature, l2, split, limit)
    told = model.fitted_to
    print(f"{model.table()}\n\n{told['pairs']} pairs; right on {told['accuracy_on_them']:.1%} of those that are decided (not held out)")
    print(written)


def best_of_n(
    model: Annotated[str | None, Parameter(name="MODEL", help="Policy to sample from; or none, and --samples.")] = None,
    /,
    *,
    prompts: Annotated[str | None, Parameter(help="Prompts to answer: a file, a folder, a hub id or tether:NAME.")] = None,
    samples: Annotated[str | None, Parameter(help="File of scored answers instead: prompt, completion, and a column per score.")] = None,
    proxy: Annotated[str | None, Parameter(help="Reward model that picks (folder or linear JSON); with --samples its column.")] = None,
    gold: Annotated[str | None, Parameter(help="Independent score, plainspoken or exact; with --samples its column.")] = None,
    gold_param: Annotated[tuple[str, ...], Parameter(help="Setting of the gold score, NAME=VALUE, e.g. column=answer.", negative=())] = (),
    num_samples: Annotated[int, Parameter(help="Answers per prompt.")] = 16,
    max_new_tokens: Annotated[int, Parameter(help="Token budget of an answer.")] = 64,
    temperature: Annotated[float, Parameter(help="Divides the logits.")] = 1.0,
    limit: Annotated[int | None, Parameter(help="Only the first so many rows.")] = None,
    seed: Annotated[int, Parameter(help="Seed of sampling and bootstrap.")] = 0,
    output: Annotated[Path | None, Parameter(help="File of the full result, JSON.")] = None,
    plot: Annotated[Path | None, Parameter(help="Draw the curve into this .svg or .html file.")] = None,
    write_samples: Annotated[Path | None, Parameter(help="Keep the scored answers as JSONL, for --samples.")] = None,
    write_sft: Annotated[Path | None, Parameter(help="Write the best finished answer of each prompt as demonstrations, JSONL.")] = None,
    as_json: Annotated[bool, _FLAG, Parameter(name="--json", help="Print the full result as JSON.")] = False,
) -> None:
    """What proxy and gold come to at the best of n answers, without bias, with intervals, beside a bound on the KL.

    Example: tether best-of-n runs/quickstart/sft --prompts tether:quickstart_prompts_heldout.jsonl --proxy runs/quickstart/reward_model
    """
    import json

    from tether.run.best_of_n import as_text
    from tether.run.best_of_n_command import BestOfNRequest, best_of_n_command
    from tether.run.evaluate_command import pair_from_word

    params = dict(pair_from_word("--gold-param", word) for word in gold_param) or None
    sampling = (num_samples, max_new_tokens, temperature, limit)
    files = (output, plot, write_samples, write_sft)
    request = BestOfNRequest(proxy, gold, model, prompts, samples, *sampling, params, seed, *files)
    found, written = best_of_n_command(request, say=lambda text: print(text, file=sys.stderr))
    print(json.dumps(found, indent=2) if as_json else "\n".join([as_text(found), "", *map(str, written)]).rstrip())
