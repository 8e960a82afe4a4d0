"""Narrow moments: the rounding has the right mean, the update is AdamW's, the bytes are those that were promised, and resume is exact."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tether.backends.local import LocalWorker
from tether.backends.narrow import BLOCK, FIRST_MOMENT, SECOND_MOMENT, num_blocks, random_bits, to_bfloat16
from tether.backends.narrow_adamw import SMALL, NarrowAdamW
from tether.config import OptimConfig
from tether.errors import CheckpointError
from tether.state import State

FORMS = ["float32", "bfloat16", "int8"]
NARROW = ["bfloat16", "int8"]
CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


# -- rounding ----------------------------------------------------------------------------------------------------------------


def bfloat16_of(x_N, bits_N):
    return to_bfloat16(x_N, bits_N).float()


def first_of(x_N, bits_N):
    return FIRST_MOMENT.read(*FIRST_MOMENT.write(x_N, bits_N))


def second_of(x_N, bits_N):
    return SECOND_MOMENT.read(*SECOND_MOMENT.write(x_N, bits_N))


def test_bits_are_two_even_independent_draws():
    one, two = (bits.double() for bits in random_bits(100_001, generator(), CPU))
    for bits in (one, two):
        assert (bits.min() >= 0, bits.max() <= 65535) == (True, True)
        assert float(bits.mean()) == pytest.approx(32767.5, rel=0.01)
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([one[1:], one[:-1]]))[0, 1])) < 0.02


@pytest.mark.parametrize(
    ("rounded", "values"),
    [(bfloat16_of, [1.001, -0.3, 1e-20, 3.337e7]), (first_of, [0.9, -0.5, 0.013, -1e-4]), (second_of, [0.9, 0.5, 0.013, 1e-4, 1e-9])],
)
def test_the_mean_is_right_and_only_the_two_neighbours_are_taken(rounded, values):
    """20,000 draws of one value, a 1 at the head of every block. Six standard errors of a draw between two neighbours."""
    for value in values:
        x_N = torch.full((20_000,), value)
        heads = slice(0, None, BLOCK)
        x_N[heads] = 1.0
        found_N = rounded(x_N, random_bits(len(x_N), generator(), CPU)[0])
        assert torch.equal(found_N[heads], x_N[heads])
        keep = torch.ones(len(x_N), dtype=torch.bool)
        keep[heads] = False
        seen = found_N[keep].double()
        low, high = seen.unique().tolist()
        assert low < value < high
        assert abs(float(seen.mean()) - value) < 6 * 0.5 * (high - low) / len(seen) ** 0.5


@pytest.mark.parametrize("rounded", [bfloat16_of, first_of, second_of])
def test_what_has_a_code_keeps_it(rounded):
    x_N = normal(3 * BLOCK + 5).abs()
    once = rounded(x_N, random_bits(len(x_N), generator(1), CPU)[0])
    again = rounded(once, random_bits(len(x_N), generator(2), CPU)[0])
    assert torch.allclose(once, again, rtol=1e-5, atol=0)


def test_relative_steps_are_those_of_the_docstrings():
    for code, at, step in ((FIRST_MOMENT, 1.0, 0.031), (FIRST_MOMENT, 1e-2, 0.1), (SECOND_MOMENT, 1.0, 0.031), (SECOND_MOMENT, 1e-4, 0.1)):
        q = torch.arange(1, code.levels + 1).to(code.dtype)
        values = code.read(q, torch.ones(1)).tolist()
        near = min(pairwise(values), key=lambda two: abs(two[0] - at))
        assert near[1] / near[0] - 1 == pytest.approx(step, rel=0.1)


def test_blocks_of_zeros_stay_zero_and_a_second_moment_is_never_lost():
    bits_N = random_bits(BLOCK, generator(), CPU)[0]
    for rounded in (first_of, second_of):
        assert not rounded(torch.zeros(BLOCK), bits_N).any()
    tiny = torch.full((BLOCK,), 1e-30)
    tiny[0] = 1.0
    assert bool((second_of(tiny, bits_N) > 0).all())


# -- the update --------------------------------------------------------------------------------------------------------------


def pulled(module, target, seed):
    """Gradients of a noisy quadratic: (w - target) + noise."""
    for number, (parameter, goal) in enumerate(zip(module.parameters(), target, strict=True)):
        parameter.grad = parameter.detach() - goal + 0.3 * normal(*parameter.shape, seed=1000 * seed + number)


def moved(form, module, num_steps=50, **settings):
    """Weights after some steps of a worker, from the weights of ``module``."""
    module = copy.deepcopy(module)
    target = [normal(*p.shape, seed=99 + p.ndim) for p in module.parameters()]
    worker = LocalWorker([module], OptimConfig(states=form, learning_rate=0.01, max_grad_norm=1e9, **settings), num_steps)
    for step in range(num_steps):
        pulled(module, target, step)
        worker.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()]), worker


def test_where_moments_stay_wide_the_update_is_that_of_torch():
    """int8 keeps small tensors in float32: nothing but the order of operations differs. Weights are near 1, so 50 steps of rounding."""
    module = nn.Linear(40, 50)
    settings = {"weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 5}
    ours, worker = moved("int8", module, **settings)
    theirs, other = moved("float32", module, **settings)
    assert isinstance(worker.optimizer, NarrowAdamW)
    assert isinstance(other.optimizer, torch.optim.AdamW)
    assert torch.allclose(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("form", "share"), [("bfloat16", 0.005), ("int8", 0.04)])
def test_narrow_moments_move_weights_as_wide_ones_do(form, share):
    """The difference after 50 steps as a share of the way. 78,000 weights are two pieces, the second with a short block."""
    module = nn.Linear(300, 260)
    start = torch.cat([p.detach().flatten() for p in module.parameters()])
    narrow, wide = moved(form, module)[0], moved("float32", module)[0]
    assert float((narrow - wide).norm() / (wide - start).norm()) < share


@pytest.mark.parametrize("form", NARROW)
def test_the_second_moment_shrinks_where_rounding_to_the_nearest_would_stall(form):
    """No gradient for 500 steps: v falls to .999^500 = .606 of itself. To the nearest bfloat16 it would not move at all."""
    module = nn.Linear(64, 128, bias=False)
    optimizer = NarrowAdamW([{"params": [module.weight], "lr": 0.0}], form, betas=(0.9, 0.999), eps=1e-8)
    module.weight.grad = normal(128, 64)
    optimizer.step()

    def second():
        state = optimizer.state[module.weight]
        kept = state["exp_avg_sq"].flatten()
        return (SECOND_MOMENT.read(kept, state["exp_avg_sq_absmax"]) if form == "int8" else kept.float()).double()

    before = second()
    module.weight.grad = torch.zeros(128, 64)
    for _ in range(500):
        optimizer.step()
    assert float(second().sum() / before.sum()) == pytest.approx(0.999**500, rel=0.03)


def test_plain_rounding_does_stall():
    """The reason for all this, stated about torch itself."""
    value = torch.tensor(1.0, dtype=torch.bfloat16)
    assert float((value.float() * 0.999).to(torch.bfloat16)) == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_weights_alone_decay_and_every_group_keeps_its_rate(form):
    module = nn.ModuleDict({"body": nn.Linear(80, 80), "value_head": nn.Linear(80, 1)})
    before = copy.deepcopy(module)
    config = OptimConfig(states=form, learning_rate=0.1, weight_decay=0.5, schedule="linear")
    worker = LocalWorker([module], config, 2, head_names=("value_head",), head_learning_rate=0.7)
    rates = []
    for _ in range(2):
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        worker.step()
        rates.append([group["lr"] for group in worker.optimizer.param_groups])
    assert rates == [[0.1, 0.1, 0.7], [0.05, 0.05, 0.35]]
    shrunk = before["body"].weight * (1 - 0.1 * 0.5) * (1 - 0.05 * 0.5)
    assert torch.allclose(module["body"].weight, shrunk, rtol=1e-6, atol=0)
    assert torch.equal(module["body"].bias, before["body"].bias)
    assert torch.equal(module["value_head"].weight, before["value_head"].weight)


def test_a_head_with_a_rate_of_its_own_moves_by_it():
    """The first update of Adam is the learning rate times the sign of the gradient."""
    module = nn.ModuleDict({"body": nn.Linear(80, 80), "value_head": nn.Linear(80, 80)})
    before = copy.deepcopy(module)
    config = OptimConfig(states="int8", learning_rate=0.1, max_grad_norm=1e9)
    worker = LocalWorker([module], config, 2, head_names=("value_head",), head_learning_rate=0.7)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    worker.step()
    for name, rate in (("body", 0.1), ("value_head", 0.7)):
        assert torch.allclose(before[name].weight - module[name].weight, torch.tensor(rate), atol=1e-5)


def test_weights_in_another_order_of_memory_move_the_same():
    plain = nn.Parameter(normal(90, 70))
    turned = nn.Parameter(plain.detach().t().contiguous().t())
    assert not turned.is_contiguous()
    for weight in (plain, turned):
        weight.grad = normal(90, 70, seed=1)
        NarrowAdamW([{"params": [weight], "lr": 0.1}], "int8", betas=(0.9, 0.999), eps=1e-8).step()
    assert torch.equal(plain, turned)


def test_a_weight_without_a_gradient_is_left_alone():
    module = nn.Linear(80, 80)
    before = module.weight.detach().clone()
    optimizer = NarrowAdamW([{"params": list(module.parameters()), "lr": 0.1}], "bfloat16", betas=(0.9, 0.999), eps=1e-8)
    module.bias.grad = torch.ones(80)
    optimizer.step()
    assert torch.equal(module.weight, before)
    assert module.weight not in optimizer.state


# -- training ----------------------------------------------------------------------------------------------------------------


def final_loss(form):
    """Noisy regression by minibatches, 64 inputs to 96 outputs; the mean loss over all rows at the end (its floor is the noise)."""
    x, truth = normal(512, 64), normal(64, 96, seed=1) / 8
    y = x @ truth + 0.5 * normal(512, 96, seed=2)
    torch.manual_seed(0)
    module = nn.Linear(64, 96)
    worker = LocalWorker([module], OptimConfig(states=form, learning_rate=0.02, schedule="linear", max_grad_norm=1e9), 300)
    for step in range(300):
        rows = torch.randint(512, (64,), generator=generator(step))
        worker.accumulate((module(x[rows]) - y[rows]).square().mean())
        worker.step()
    return float((module(x) - y).square().mean().detach())


def test_a_regression_ends_at_the_same_loss():
    wide = final_loss("float32")
    assert wide < 0.3  # of 1.25 at the start: it has learned
    for form in NARROW:
        assert final_loss(form) == pytest.approx(wide, rel=0.005)


# -- memory and resume -------------------------------------------------------------------------------------------------------


def stepped(module, form, num_steps=3, first=0):
    worker = LocalWorker([module], OptimConfig(states=form, learning_rate=0.01, weight_decay=0.1), 10)
    take(worker, module, num_steps, first)
    return worker


def take(worker, module, num_steps, first):
    for step in range(first, first + num_steps):
        for number, parameter in enumerate(module.parameters()):
            parameter.grad = normal(*parameter.shape, seed=100 * step + number)
        worker.step()


def state_bytes(worker):
    tensors = [t for kept in worker.optimizer.state.values() for name, t in kept.items() if name != "step"]
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(("form", "per_weight"), [("float32", 8), ("bfloat16", 4), ("int8", 2 + 8 / BLOCK)])
def test_the_states_take_the_bytes_that_were_promised(form, per_weight):
    module = nn.Linear(256, 256, bias=False)
    assert state_bytes(stepped(module, form)) == per_weight * module.weight.numel()


def test_int8_keeps_embeddings_and_small_tensors_wide():
    module = nn.Sequential(nn.Embedding(100, 100), nn.Linear(100, 100), nn.LayerNorm(100))
    worker = stepped(module, "int8")
    kept = {name: worker.optimizer.state[parameter] for name, parameter in module.named_parameters()}
    assert {name: state["exp_avg"].dtype for name, state in kept.items()} == {
        "0.weight": torch.float32, "1.weight": torch.int8, "1.bias": torch.float32, "2.weight": torch.float32, "2.bias": torch.float32,
    }  # fmt: skip
    assert kept["1.weight"]["exp_avg_sq"].dtype == torch.uint8
    assert kept["1.weight"]["exp_avg_absmax"].shape == (num_blocks(100 * 100),)
    assert 100 * 100 >= SMALL > 100


def test_a_tied_embedding_is_an_embedding():
    body, head = nn.Embedding(100, 100), nn.Linear(100, 100, bias=False)
    head.weight = body.weight
    worker = stepped(nn.ModuleList([head, body]), "int8")
    assert worker.optimizer.state[body.weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_saved_and_continued_is_the_unbroken_run_bit_for_bit(form, tmp_path):
    """Through a file; 78,000 weights are two pieces, and 300 x 260 leaves a short block."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(300, 260), nn.Embedding(50, 90), nn.Linear(70, 90))
    whole = copy.deepcopy(start)
    unbroken = stepped(whole, form, 6)
    half = copy.deepcopy(start)
    state = stepped(half, form, 3).state()
    save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, tmp_path / "state.safetensors")
    again = copy.deepcopy(start)
    worker = LocalWorker([again], OptimConfig(states=form, learning_rate=0.01, weight_decay=0.1), 10)
    worker.restore(State(load_file(tmp_path / "state.safetensors"), state.values))
    take(worker, again, 3, 3)
    one, two = unbroken.state(), worker.state()
    assert one.values == two.values
    assert one.tensors.keys() == two.tensors.keys()
    assert {name: t.dtype for name, t in one.tensors.items()} == {name: t.dtype for name, t in two.tensors.items()}
    assert [name for name in one.tensors if not torch.equal(one.tensors[name], two.tensors[name])] == []


@pytest.mark.parametrize("held", FORMS)
@pytest.mark.parametrize("asked", FORMS)
def test_states_of_another_form_are_refused_by_name(held, asked):
    state = stepped(nn.Linear(80, 80), held).state()
    worker = LocalWorker([nn.Linear(80, 80)], OptimConfig(states=asked), 10)
    if held == asked:
        worker.restore(state)
        return
    with pytest.raises(CheckpointError, match=rf"optimiser states in {held}, and optim\.states = '{asked}'"):
        worker.restore(state)


def test_a_checkpoint_from_before_the_option_is_float32():
    state = stepped(nn.Linear(80, 80), "float32").state()
    older = State(state.tensors, {name: value for name, value in state.values.items() if name != "states"})
    LocalWorker([nn.Linear(80, 80)], OptimConfig(), 10).restore(older)
