"""The commands `tether evaluate` and `tether compare`. Heavy modules are imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["compare", "evaluate"]

_Flag = Parameter(negative=())


def evaluate(
    *models: Annotated[
        str, Parameter(name="MODEL", help="Model folder, hub id, smollm2, tiny, a run (its start and policies) or a checkpoint of a run.")
    ],
    config: Annotated[Path | None, Parameter(help="Run whose [evaluate], [model], [compute] and seed are the defaults.")] = None,
    prompts: Annotated[str | None, Parameter(help="Held-out prompts: a file, a folder, a hub id or tether:NAME.")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many prompts.")] = None,
    score: Annotated[str | None, Parameter(help="plainspoken or exact.")] = None,
    score_param: Annotated[tuple[str, ...], Parameter(help="Setting of the score, NAME=VALUE, e.g. column=answer.", negative=())] = (),
    samples: Annotated[int | None, Parameter(help="Answers per prompt and sampling seed.")] = None,
    max_new_tokens: Annotated[int | None, Parameter(help="Token budget of an answer.")] = None,
    temperature: Annotated[float | None, Parameter(help="Divides the logits.")] = None,
    seed: Annotated[int | None, Parameter(help="First sampling seed; of the bootstrap too.")] = None,
    num_seeds: Annotated[int, Parameter(help="Sampling seeds, counted up from the first.")] = 1,
    against: Annotated[str | None, Parameter(help="Model the others are compared with; else the first.")] = None,
    reference: Annotated[str | None, Parameter(help="Model that the KL is measured to; without it there is no KL.")] = None,
    reward_model: Annotated[str | None, Parameter(help="Folder of a reward model, for win rates by it.")] = None,
    judge: Annotated[str | None, Parameter(help="MODULE:FUNCTION (prompt, first, second) -> 1, 0.5, 0 or None; win rates by it.")] = None,
    output: Annotated[Path | None, Parameter(help="File of the full result; else evaluations/HASH.json.")] = None,
    as_json: Annotated[bool, _Flag, Parameter(name="--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Scores, pass@k and win rates of any models on held-out prompts, with intervals, and where every number comes from.

    Example: tether evaluate runs/quickstart --config recipes/quickstart.toml
    """
    from tether.run.evaluate_command import EvaluateRequest, as_text, evaluate_command, settings_from_words

    settings = settings_from_words(prompts, score, score_param, samples, max_new_tokens, temperature, limit)
    request = EvaluateRequest(models, config, settings, against, reference, reward_model, judge, seed, num_seeds, output)
    found, written = evaluate_command(request, say=lambda text: print(text, file=sys.stderr))
    print(written.read_text(encoding="utf-8") if as_json else f"{as_text(found)}\n\n{written}")


def compare(
    *runs: Annotated[str, Parameter(name="RUN", help="Run folders, or RUN:POLICY; RUN:start is the policy before training.")],
    seed: Annotated[int, Parameter(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[bool, _Flag, Parameter(name="--json", help="Print every figure, unrounded, as JSON.")] = False,
) -> None:
    """Is one run really better? Paired intervals over the same held-out prompts, KL of both, seeds of one recipe as a group.

    Example: tether compare runs/a runs/b
    """
    from tether.compare import as_json as compared_json
    from tether.compare import as_text
    from tether.compare import compare as compare_runs

    compared = compare_runs(runs, seed=seed)
    print(compared_json(compared) if as_json else as_text(compared))
