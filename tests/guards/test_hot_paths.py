"""What the hot paths compute, counted: products in FLOP, calls of operators. No times; a change that computes more is seen here.

Numbers that may rise for a good reason are pinned with that reason beside them; lower ones are always welcome (pin the new one).
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tether.backends.compute import Compute
from tether.config import rl_kind
from tether.data.batches import pad_examples
from tether.models import head as head_module
from tether.models.policy import Policy
from tether.models.reference import Reference
from tether.models.resolve import resolve_model
from tether.rollout.local import LocalSampler
from tether.run.learner import OnlineLearner
from tether.run.rows import RolloutRow
from tether.text.chat import sampled_example
from tether.types import Request, Sampling

PROMPT, ANSWER, GROUP = 12, 6, 4
COMPUTE = Compute(torch.device("cpu"), torch.float32, 4096)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load(resolve_model("tiny"))


def rows(prompts: int = 2) -> list[RolloutRow]:
    return [
        RolloutRow(tuple(range(10 + p, 10 + p + PROMPT)), tuple(range(40 + g, 40 + g + ANSWER)), None, float(g % 2), f"p{p}", True)
        for p in range(prompts)
        for g in range(GROUP)
    ]


def matrices(policy: Policy) -> tuple[int, int]:
    """(weights of the linear layers of the trunk, weights of the head): each token costs 2 FLOP a weight and pass."""
    trunk = sum(m.weight.numel() for m in policy.model.get_decoder().modules() if isinstance(m, torch.nn.Linear))
    return trunk, policy.model.lm_head.weight.numel()


def filled(tokens: int) -> int:
    """Rows of a product: packed tokens are filled up to a multiple of 16."""
    return tokens + -tokens % 16


def products(counter: FlopCounterMode) -> int:
    """FLOP of products with weights. Attention is made of batched products, and left out."""
    counts = counter.get_flop_counts()["Global"]
    return sum(counts.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))


class Calls(TorchDispatchMode):
    """Operators that were called, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("autocast", "room", "head_products"), [(False, None, 4), (True, None, 3), (True, 0, 4)])
def test_an_update_computes_a_shared_prompt_once_and_the_head_at_live_tokens_alone(policy, autocast, room, head_products, monkeypatch):
    """Forward, and two products backward. The head makes logits once more that are wide, or more than may wait in memory."""
    if room is not None:
        monkeypatch.setattr(head_module, "KEPT_BYTES", room)
    trunk, head = matrices(policy)
    batch = pad_examples([sampled_example(row.query_ids, row.response_ids) for row in rows(1)], 0)
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logprobs_BT = policy.forward_response(batch, 1.0).logprobs_BT
        logprobs_BT.sum().backward()
    policy.zero_grad()
    tokens, live = filled(PROMPT + GROUP * ANSWER), GROUP * ANSWER
    assert products(counter) == 2 * (3 * trunk * tokens + head_products * head * live)


@pytest.mark.parametrize(("minibatches", "passes"), [(1, 1), (2, 2)])
def test_a_round_reads_policy_and_reference_no_more_often_than_it_has_to(policy, minibatches, passes):
    """Forward passes of the policy: one in the update, and one before it unless it is the only one. The reference reads once."""
    trunk, head = matrices(policy)
    settings = {"prompts": {"path": "p"}, "rewards": [{"kind": "format"}], "samples_per_prompt": GROUP, "minibatches": minibatches}
    config = rl_kind("grpo").model_validate({"kind": "grpo", "steps": 1, **settings})
    learner = OnlineLearner(policy, Reference.frozen_copy(policy), config, COMPUTE)
    with FlopCounterMode(display=False) as counter:
        learner.learn(rows(1))
    tokens = minibatches * filled(PROMPT + GROUP * ANSWER // minibatches)  # a prompt of answers in two steps is computed in both
    live = GROUP * ANSWER
    reads = passes * 2 * (trunk * tokens + head * live)  # the reference, and the old pass where there is one
    assert products(counter) == reads + 2 * (3 * trunk * tokens + 4 * head * live)


def test_generation_computes_a_prompt_once_and_every_token_once(policy):
    trunk, head = matrices(policy)
    sampler = LocalSampler(policy.model, [], 0, torch.float32)
    with FlopCounterMode(display=False) as counter:
        list(sampler.generate([Request("p", tuple(range(10, 10 + PROMPT)), GROUP, 7)], Sampling(ANSWER)))
    steps = GROUP * (ANSWER - 1)
    assert products(counter) == 2 * (trunk * (PROMPT + steps) + head * (1 + steps))


def test_calls_of_a_decode_step(policy):
    """Each call costs microseconds of Python and dispatch, which is most of a step of a small model at batch 1.

    A float32 product is three (two transposes, which make views), where the linear of PyTorch hides two of its own: 34 calls of the 208.
    """
    sampler = LocalSampler(policy.model, [], 0, torch.float32)

    def calls(new_tokens: int) -> int:
        with Calls() as seen:
            list(sampler.generate([Request("p", tuple(range(10, 10 + PROMPT)), GROUP, 7)], Sampling(new_tokens)))
        return seen.count.total()

    assert policy.model.config.num_hidden_layers == 2
    assert (calls(12) - calls(4)) / 8 <= 208
