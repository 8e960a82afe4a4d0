"""Answers to the prompts of a collection, drawn through the sampler, with everything that says where they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from tether.backends.compute import Compute, resolve_compute
from tether.collect.entries import Answer, Provenance
from tether.collect.exchange.identity import item_of
from tether.collect.judgement import Item
from tether.collect.select import draw_pairs
from tether.collect.store import Store
from tether.config import ComputeConfig, ModelConfig
from tether.errors import ConfigError, DataError
from tether.rollout.local import LocalSampler
from tether.rollout.rollouter import collect
from tether.rollout.sampler import check_sampling
from tether.run.candidates import Candidate, final_candidates
from tether.types import Prompt, Rollout, Sampling

__all__ = ["GenerateReport", "GenerateRequest", "generate_answers"]

SOURCE = "tether collect generate"


@dataclass(frozen=True)
class GenerateRequest:
    """What to draw: every model at every temperature gives ``samples`` answers to each of the first ``limit`` prompts.

    ``pairs``: items per prompt, drawn from its new answers; two equal texts are no item.
    """

    models: Sequence[str]
    temperatures: Sequence[float] = (1.0,)
    samples: int = 2
    max_new_tokens: int = 256
    pairs: int = 1
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [] if self.models else ["name at least one model: a folder, a run, a checkpoint of a run, or a hub id"]
        for name, least in (("samples", 1), ("pairs", 0), ("limit", 1), ("seed", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                problems.append(f"{name} must be at least {least}, got {value}")
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            problems.append(f"expected one or more different temperatures, got {list(self.temperatures)}")
        if problems:
            raise ConfigError(problems, "generate")


@dataclass(frozen=True)
class GenerateReport:
    """Counts. ``known``: answers that were there already; ``without_item``: prompts with fewer than two different texts."""

    prompts: int
    answers: int
    known: int
    items: int
    without_item: int

    def __str__(self) -> str:
        told = f"{self.prompts} prompts: {self.answers} answers and {self.items} items added"
        told += f"; {self.known} answers were there already" if self.known else ""
        return told + (f"; {self.without_item} prompts got fewer than two different answers and no item" if self.without_item else "")


def generate_answers(
    database: str, request: GenerateRequest, say: Callable[[str], None] = lambda text: None, model: ModelConfig | None = None
) -> GenerateReport:
    """Draw, store, pair. One model is in memory at a time, and its answers are stored before the next one is loaded.

    An answer is a function of (seed, place of the model and temperature in the request, prompt, sample): the same request adds nothing.
    Raises errors of the database, of models and of the sampler.
    """
    contracts = [Sampling(request.max_new_tokens, temperature) for temperature in request.temperatures]
    for sampling in contracts:
        check_sampling(sampling)
    candidates = final_candidates(request.models, model or ModelConfig())
    compute = resolve_compute(ComputeConfig())
    with Store.open(database) as store:
        prompts = [Prompt(one.prompt_id, one.text, one.columns) for one in islice(store.prompts(), request.limit)]
        if not prompts:
            raise DataError(f"{store.place} holds no prompts; import some: tether collect import DATABASE FILE --format prompts")
        drawn: dict[str, list[Answer]] = {prompt.prompt_id: [] for prompt in prompts}
        new = known = 0
        for place, candidate in enumerate(candidates):
            say(f"{candidate.label}: {len(prompts)} prompts x {request.samples} answers x {len(contracts)} temperatures")
            answers = _answers_of(candidate, contracts, prompts, request, compute, place * len(contracts))
            added = store.add_answers(answers)
            new, known = new + added.new, known + added.known
            for answer in answers:
                drawn[answer.prompt_id].append(answer)
        items = {prompt_id: _items(prompt_id, answers, request) for prompt_id, answers in drawn.items()}
        made = store.add_items(item for found in items.values() for item in found)
        without = sum(not found for found in items.values()) if request.pairs else 0
        return GenerateReport(len(prompts), new, known, made.new, without)


def _answers_of(
    candidate: Candidate, contracts: Sequence[Sampling], prompts: Sequence[Prompt], request: GenerateRequest, compute: Compute, first: int
) -> list[Answer]:
    policy = candidate.load().to(compute.device)
    weights = policy.weights_fingerprint()
    sampler = LocalSampler(policy.model, policy.format.eos_ids, policy.format.pad_id, compute.dtype)
    found = []
    for step, sampling in enumerate(contracts, start=first):
        rollouts = collect(prompts, sampler, sampling, policy.format, num_samples=request.samples, run_seed=request.seed, step=step)
        found += [_answer(rollout, candidate.label, weights, step, request.seed) for group in rollouts for rollout in group]
    return found


def _answer(rollout: Rollout, label: str, weights: str, step: int, seed: int) -> Answer:
    drawn = rollout.completion
    told = asdict(drawn.sampling) | {"stop_reason": drawn.stop_reason.value, "step": step, "sample_index": drawn.sample_index}
    return Answer.of(rollout.prompt.prompt_id, rollout.text, Provenance(SOURCE, label, weights, told, seed))


def _items(prompt_id: str, answers: Sequence[Answer], request: GenerateRequest) -> list[Item]:
    texts = {answer.answer_id: answer.plain for answer in answers}
    return [item_of(prompt_id, pair) for pair in draw_pairs(prompt_id, texts, request.pairs, request.seed)]
