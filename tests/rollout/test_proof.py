"""Weight proof at every publish: healthy runs pass in every precision; stale weights and wrong merges stop the run."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tether.backends.compute import Compute
from tether.config import CriticFreeConfig
from tether.errors import NumericsError, SamplerError
from tether.events import EventLog, read_events
from tether.models.adapters import LoraSpec, _layers, merged_weights
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.rewards.rubric import Rubric
from tether.rollout.local import LocalSampler
from tether.rollout.proof import TOLERANCES, WeightProof, probe_rows
from tether.run.learner import OnlineLearner
from tether.run.observer import Quiet
from tether.run.recorder import Recorder
from tether.run.rl import OnlineRun, rl
from tether.types import Prompt, Score

CPU = torch.device("cpu")
FLOAT32, BFLOAT16 = Compute(CPU, torch.float32, 4096), Compute(CPU, torch.bfloat16, 4096)
LORA = LoraSpec(rank=4, alpha=8.0)


def tiny(lora=None):
    return Policy.load(resolve_model("tiny"), lora=lora)


def local(policy, dtype, max_rows=64, model=None):
    return LocalSampler(model or policy.model, policy.format.eos_ids, policy.format.pad_id, dtype, max_rows)


def prove(policy, sampler, compute):
    return WeightProof(policy, sampler, compute.dtype, compute.autocast)


def train(policy, scale=0.05, seed=0, only=""):
    """A move of every trained weight, as an optimiser would make in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and only in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


class Merged:
    """A sampler that decodes a plain copy of the policy, merged at each refresh as ``merge`` does it: what an engine elsewhere is sent."""

    def __init__(self, policy, merge=merged_weights):
        self._policy, self._merge = policy, merge
        self._twin = tiny()
        self._twin.model.load_state_dict(merge(policy.model))
        self._local = local(self._twin, torch.float32)
        self.version = 0

    def refresh(self, version):
        self._twin.model.load_state_dict(self._merge(self._policy.model))
        self._local.refresh(version)
        self.version = version

    def generate(self, requests, sampling):
        return self._local.generate(requests, sampling)

    def forced_logprobs(self, prompts, answers):
        return self._local.forced_logprobs(prompts, answers)

    def copy_gaps(self):
        return {}


# -- healthy publishes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_healthy_publishes_never_trip(compute, lora):
    policy = tiny(lora)
    sampler = local(policy, compute.dtype)
    assert not sampler.plain
    proof = prove(policy, sampler, compute)
    gaps = [proof.check(0)]
    for version in range(1, 6):
        train(policy, seed=version)
        sampler.refresh(version)
        gaps.append(proof.check(version))
    assert max(gaps) <= TOLERANCES[compute.dtype].token / 5


def test_a_publish_of_weights_that_did_not_move_is_healthy():
    policy = tiny()
    sampler = local(policy, torch.bfloat16)
    proof = prove(policy, sampler, BFLOAT16)
    proof.check(0)
    sampler.refresh(1)
    proof.check(1)


def test_a_right_merge_passes():
    policy = tiny(LORA)
    sampler = Merged(policy)
    proof = prove(policy, sampler, FLOAT32)
    for version in (1, 2):
        train(policy, seed=version)
        sampler.refresh(version)
        assert proof.check(version) < 1e-4


def test_the_probe_goes_through_the_decode_path_whatever_the_number_of_rows():
    policy = tiny()
    rows = probe_rows(policy)
    prompts, answers = [row[:6] for row in rows], [row[6:] for row in rows]
    wide, narrow = (local(policy, torch.float32, max_rows).forced_logprobs(prompts, answers) for max_rows in (64, 1))
    assert wide.shape == (4, 8)
    torch.testing.assert_close(wide, narrow)
    assert rows == probe_rows(tiny())


def test_the_proof_draws_no_random_number_and_moves_nothing():
    policy = tiny()
    before, state = policy.weights_fingerprint(), torch.get_rng_state()
    prove(policy, local(policy, torch.float32), FLOAT32).check(0)
    assert policy.weights_fingerprint() == before
    assert torch.equal(torch.get_rng_state(), state)


# -- planted faults ----------------------------------------------------------------------------------------------------------


def test_a_skipped_refresh_is_seen_by_its_version():
    policy = tiny()
    proof = prove(policy, local(policy, torch.float32), FLOAT32)
    with pytest.raises(SamplerError, match=r"version 1 were published, but the sampler answers under version 0.*skipped"):
        proof.check(1)


@pytest.mark.parametrize("scale", [0.05, 1e-4], ids=["large", "far below the tolerance"])
def test_stale_copies_under_a_new_version_are_seen_and_a_tensor_is_named(scale):
    policy = tiny()
    sampler = local(policy, torch.bfloat16)
    proof = prove(policy, sampler, BFLOAT16)
    proof.check(0)
    train(policy, scale)
    sampler.version = 1  # stamped, not copied
    with pytest.raises(SamplerError, match=r"version 1: .* nats at most.*its copy of .* is off by .*more tensors.*not copied"):
        proof.check(1)


@pytest.mark.parametrize("field", ["qkv", "down", "mlp_norm"])
def test_one_layer_that_is_not_copied_is_seen_and_named(field):
    policy = tiny()
    sampler = local(policy, torch.bfloat16)
    proof = prove(policy, sampler, BFLOAT16)
    old = local(policy, torch.bfloat16)._packed.layers[1]  # a publish writes over the copies of its own sampler
    train(policy, 1e-2)
    sampler.refresh(1)
    fresh = sampler._packed.layers
    sampler._packed = replace(sampler._packed, layers=(fresh[0], replace(fresh[1], **{field: getattr(old, field)}), *fresh[2:]))
    with pytest.raises(SamplerError, match=r"its copy of layers\.1\."):
        proof.check(1)


def test_references_to_weights_that_were_replaced_are_seen_in_float32():
    policy = tiny()
    sampler = local(policy, torch.float32)
    proof = prove(policy, sampler, FLOAT32)
    with torch.no_grad():
        linear = policy.model.model.layers[0].mlp.down_proj
        linear.weight = torch.nn.Parameter(linear.weight + 0.1)  # the sampler still refers to the old one
    with pytest.raises(SamplerError, match=r"layers\.0\.down_proj"):
        proof.check(0)


def unscaled(model):
    """B A without alpha / rank."""
    twin = deepcopy(model)
    for layer in _layers(twin).values():
        layer.scaling["default"] = 1.0
    return merged_weights(twin)


def unmerged(model):
    return {name.replace(".base_layer", ""): value for name, value in model.state_dict().items() if ".lora_" not in name}


def twice(model):
    base, once = unmerged(model), merged_weights(model)
    return {name: 2 * once[name] - base[name] for name in once}


@pytest.mark.parametrize("merge", [unscaled, unmerged, twice])
def test_a_wrong_merge_is_seen_at_the_first_publish_that_matters(merge):
    policy = tiny(LORA)
    sampler = Merged(policy, merge)
    proof = prove(policy, sampler, FLOAT32)
    proof.check(0)  # adapters start at zero: every merge is right
    train(policy)
    sampler.refresh(1)
    with pytest.raises(SamplerError, match=r"float32 explains 0\.001 and 0\.0001"):
        proof.check(1)


def test_a_sampler_elsewhere_that_stands_still_is_seen_although_the_difference_is_small():
    policy = tiny()
    twin = deepcopy(policy)
    sampler = local(twin, torch.float32)
    proof = prove(policy, sampler, FLOAT32)
    proof.check(0)
    train(policy, 2e-5)
    sampler.refresh(1)
    sampler.copy_gaps = dict
    gap = (sampler.forced_logprobs([r[:6] for r in probe_rows(policy)], [r[6:] for r in probe_rows(policy)])).mean()
    assert torch.isfinite(gap)
    with pytest.raises(SamplerError, match="skipped"):
        proof.check(1)


def test_a_policy_that_is_not_finite_is_no_fault_of_the_sampler():
    policy = tiny()
    sampler = local(policy, torch.float32)
    with torch.no_grad():
        policy.model.lm_head.weight[3] = torch.nan
    with pytest.raises(NumericsError, match="version 0"):
        prove(policy, sampler, FLOAT32).check(0)


# -- in the loop -------------------------------------------------------------------------------------------------------------


class IdsPart:
    """A reward with spread in every group."""

    name = "ids"

    def score(self, rollouts):
        return [Score(sum(rollout.completion.token_ids) / 100) for rollout in rollouts]


def play(tmp_path, compute, lora=None, sampler=None, policy=None):
    policy = policy or tiny(lora)
    settings = {"prompts": {"path": "p"}, "rewards": [{"kind": "length"}], "sampling": {"max_new_tokens": 6}, "steps": 3,
                "prompts_per_step": 2, "samples_per_prompt": 3, "optim": {"learning_rate": 1e-2}}  # fmt: skip
    reference = Reference.adapter_off(policy) if lora else Reference.frozen_copy(policy)
    learner = OnlineLearner(policy, reference, CriticFreeConfig.model_validate(settings), compute)
    sampler = sampler or local(policy, compute.dtype)
    prompts = [Prompt(f"p{number}", f"Say {number}.") for number in range(4)]
    log = EventLog(tmp_path / "events.jsonl")
    run = OnlineRun(learner, sampler, Rubric([("ids", 1.0, IdsPart())]), prompts, 0, prove(policy, sampler, compute))
    try:
        rl(run, Recorder(log, Quiet(), "rl.test", 3))
    finally:
        log.close()
        events = [event for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "step"]
        (tmp_path / "steps").write_text(str(len(events)))
    return [event["metrics"]["publish_gap"] for event in events]


@pytest.mark.parametrize(("compute", "lora"), [(FLOAT32, None), (BFLOAT16, None), (FLOAT32, LORA), (BFLOAT16, LORA)])
def test_every_step_of_a_healthy_run_logs_its_gap(tmp_path, compute, lora):
    gaps = play(tmp_path, compute, lora)
    assert len(gaps) == 3
    assert all(0 <= gap <= TOLERANCES[compute.dtype].token for gap in gaps)


def test_a_run_with_stale_copies_stops_in_the_step_that_published_them(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalSampler, "rest", lambda self: None)
    monkeypatch.setattr(LocalSampler, "refresh", lambda self, version: setattr(self, "version", version))
    with pytest.raises(SamplerError, match="weights of version 1"):
        play(tmp_path, BFLOAT16)
    assert (tmp_path / "steps").read_text() == "0"


def test_a_run_with_a_wrong_merge_stops(tmp_path):
    policy = tiny(LORA)
    with pytest.raises(SamplerError, match="merged wrongly"):
        play(tmp_path, FLOAT32, LORA, Merged(policy, unscaled), policy)


def test_no_autocast_is_a_precision_too():
    policy = tiny()
    assert WeightProof(policy, local(policy, torch.float32), torch.float32, nullcontext).check(0) < 1e-5


def test_a_publish_writes_over_the_copies_and_makes_no_second_set():
    policy = tiny()
    sampler = local(policy, torch.bfloat16)
    held = sampler._packed
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    sampler.refresh(1)
    assert sampler._packed is held
    copies, fresh = tensors_of(held), tensors_of(local(policy, torch.bfloat16)._packed)
    assert {name: copy.is_mkldnn for name, copy in copies.items()} == {name: copy.is_mkldnn for name, copy in fresh.items()}
    for name, copy in copies.items():
        assert torch.equal(plain(copy), plain(fresh[name])), name
    assert tensors_of(sampler._packed).keys() == copies.keys()
    assert all(copy is copies[name] for name, copy in tensors_of(sampler._packed).items())


def tensors_of(weights):
    named = {"embedding": weights.embedding, "norm": weights.norm, "head": weights.head}
    for index, layer in enumerate(weights.layers):
        named |= {f"{index}.attention_norm": layer.attention_norm, f"{index}.mlp_norm": layer.mlp_norm}
        for name in ("qkv", "out", "gate_up", "down"):
            named |= {f"{index}.{name}.{n}": part for n, part in enumerate(getattr(layer, name).matrices)}
    return named


def plain(copy):
    return copy.to_dense() if copy.is_mkldnn else copy
