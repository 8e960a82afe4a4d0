"""The optimiser side: schedule, groups, clipping, refusal."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tether.backends.compute import resolve_compute
from tether.backends.local import LocalWorker, learning_rate_factor
from tether.config import ComputeConfig, OptimConfig
from tether.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_steps": 2}, [0.5, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"warmup_steps": 2, "schedule": "linear"}, [0.5, 1, 1, 0.5]),
        ({"schedule": "cosine"}, [1, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_schedule(settings, expected):
    config = OptimConfig(**settings)
    assert [learning_rate_factor(step, config, 4) for step in range(4)] == pytest.approx(expected)


def test_weight_decay_spares_biases_and_heads_and_heads_learn_at_their_own_rate():
    module = nn.ModuleDict({"body": nn.Linear(2, 2), "value_head": nn.Linear(2, 1)})
    worker = LocalWorker([module], OptimConfig(learning_rate=0.1, weight_decay=0.5), 1, head_names=("value_head",), head_learning_rate=0.7)
    by_size = [(len(g["params"]), g["weight_decay"], g["lr"]) for g in worker.optimizer.param_groups]
    assert by_size == [(1, 0.5, 0.1), (1, 0.0, 0.1), (2, 0.0, 0.7)]


def test_tied_weights_are_stepped_once():
    body = nn.Linear(2, 2, bias=False)
    tied = nn.Linear(2, 2, bias=False)
    tied.weight = body.weight
    assert len(LocalWorker([body, tied], OptimConfig(), 1).parameters) == 1


def test_accumulated_microbatches_equal_one_batch_and_the_norm_is_clipped():
    data = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    after = []
    for parts in ([data], [data[:2], data[2:]]):
        torch.manual_seed(0)
        module = nn.Linear(3, 1)
        worker = LocalWorker([module], OptimConfig(learning_rate=0.1, eps=1e-3), 1)
        for part in parts:
            worker.accumulate(module(part).square().sum() / len(data))
        worker.step()
        after.append(module.weight.detach().clone())
    assert torch.allclose(after[0], after[1], atol=1e-6)


def test_moments_are_there_from_the_start_and_are_those_of_adamw():
    """Weights that no gradient has reached have none in a checkpoint, and are not moved."""
    torch.manual_seed(0)
    module, idle = nn.Linear(3, 2), nn.Linear(2, 2)
    other = nn.Linear(3, 2)
    other.load_state_dict(module.state_dict())
    config = OptimConfig(learning_rate=0.1, weight_decay=0.5, max_grad_norm=1e6)
    worker = LocalWorker([module, idle], config, 9)
    held = {moment.data_ptr() for state in worker.optimizer.state.values() for name, moment in state.items() if name != "step"}
    assert len(held) == 2 * 4
    assert {name.split("/")[0] for name in worker.state().tensors} == {"weights"}
    before = idle.weight.detach().clone()
    plain = torch.optim.AdamW(
        [{"params": [other.weight], "weight_decay": 0.5}, {"params": [other.bias], "weight_decay": 0.0}],
        lr=0.1, betas=config.betas, eps=config.eps, fused=True,
    )  # fmt: skip
    for number in range(3):
        for one in (module, other):
            one(torch.full((1, 3), 0.01 * (number + 1))).sum().backward()
        worker.step()
        plain.step()
        plain.zero_grad()
    assert torch.equal(module.weight, other.weight)
    assert torch.equal(module.bias, other.bias)
    assert torch.equal(idle.weight, before)
    assert held == {moment.data_ptr() for state in worker.optimizer.state.values() for name, moment in state.items() if name != "step"}
    saved = worker.state()
    assert sorted(saved.values["updates"]) == ["0.bias", "0.weight"]
    worker.restore(saved)
    assert saved.tensors.keys() == worker.state().tensors.keys()
    assert not worker.optimizer.state[idle.weight]["exp_avg"].any()


def test_a_nan_gradient_changes_nothing_but_the_schedule():
    module = nn.Linear(2, 1)
    worker = LocalWorker([module], OptimConfig(), 4)
    before = module.weight.detach().clone()
    worker.accumulate((module(torch.ones(1, 2)) * float("nan")).sum())
    report = worker.step()
    assert not report.applied
    assert worker.steps == 1
    assert torch.equal(module.weight, before)
    assert module.weight.grad is None


def test_a_frozen_model_is_refused():
    with pytest.raises(ValueError, match="no trainable weights"):
        LocalWorker([nn.Linear(1, 1).requires_grad_(False)], OptimConfig(), 1)


def test_asking_for_a_gpu_that_is_not_there_is_a_config_error():
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(ConfigError, match="sees no GPU"):
        resolve_compute(ComputeConfig(device="cuda"))


def test_case_performance_the_end_token_keeps_its_embedding_gradient():
    """performance.md: nn.Embedding drops the gradient of padding_idx, which in SmolLM2 is the end token."""
    from tether.data.batches import pad_examples
    from tether.models.policy import Policy
    from tether.models.resolve import resolve_model
    from tether.text.chat import sampled_example

    policy = Policy.load(resolve_model("tiny"))
    end = policy.format.eos_ids[0]
    batch = pad_examples([sampled_example((5, end, 6), (7, 8))], policy.format.pad_id)
    policy.forward_response(batch, 1.0).logprobs_BT.sum().backward()
    embedding = policy.model.get_input_embeddings()
    assert embedding.padding_idx is None
    assert float(embedding.weight.grad[end].abs().sum()) > 0
