"""Nothing of the graph of a pass is alive when the next one begins: nodes that are would lie between the tensors of the next."""

from __future__ import annotations

import weakref
from collections import Counter

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook

from tether.backends.local import LocalWorker
from tether.config import RunConfig
from tether.records import write_jsonl
from tether.run.pipeline import run


class Probe:
    """Dies with the node it is put into."""


@pytest.fixture
def passes(monkeypatch):
    """Of every worker the passes that were made; each forward pass of a module asks whether nodes of an earlier backward are alive."""
    probes: list[weakref.ref[Probe]] = []
    counts: Counter[int] = Counter()
    accumulate = LocalWorker.accumulate

    def watched(self, loss):
        accumulate(self, loss)
        counts[id(self)] += 1
        todo, seen = [loss.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen or type(node).__name__ == "AccumulateGrad":  # the last lives with its weight
                continue
            seen.add(node)
            node.metadata["probe"] = probe = Probe()
            probes.append(weakref.ref(probe))
            todo += [before for before, _ in node.next_functions]
        assert len(seen) > 20

    def asked(module, args):
        assert not any(probe() for probe in probes), f"{sum(probe() is not None for probe in probes)} nodes outlive their pass"
        probes.clear()

    monkeypatch.setattr(LocalWorker, "accumulate", watched)
    hook = register_module_forward_pre_hook(asked)
    yield counts
    hook.remove()


def online(tmp_path, **settings):
    shared = {"prompts": {"path": str(tmp_path / "prompts.jsonl")}, "prompts_per_step": 4, "steps": 2, "sampling": {"max_new_tokens": 12}}
    return {"rl": {"it": {"rewards": [{"kind": "length", "params": {"low": 1, "high": 4, "falloff": 4}}], **shared, **settings}}}


STAGES = {
    "sft": lambda path: {"sft": {"data": {"path": str(path / "demos.jsonl")}, "batch_size": 6}},
    "reward model": lambda path: {"reward_model": {"data": {"path": str(path / "pairs.jsonl")}, "batch_size": 4}},
    "grpo": lambda path: online(path, kind="grpo", samples_per_prompt=3),
    "grpo, two steps a round": lambda path: online(path, kind="grpo", samples_per_prompt=3, minibatches=2),
    "ppo": lambda path: online(path, kind="ppo"),
    "ppo, two models": lambda path: online(path, kind="ppo", critic="separate"),
    "online dpo": lambda path: online(path, kind="online_dpo"),
    "dpo": lambda path: {"direct": {"it": {"kind": "dpo", "data": {"path": str(path / "pairs.jsonl")}, "batch_size": 4}}},
    "kto": lambda path: {"direct": {"it": {"kind": "kto", "data": {"path": str(path / "pairs.jsonl")}, "batch_size": 4}}},
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_graph_is_gone_before_the_next_pass(stage, tmp_path, passes):
    prompts = [[{"role": "user", "content": f"Say {i}."}] for i in range(12)]
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt_id": f"t{i}", "prompt": prompt} for i, prompt in enumerate(prompts)])
    write_jsonl(tmp_path / "demos.jsonl", [{"prompt": prompt, "completion": "Yes, of course."} for prompt in prompts])
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": prompt, "chosen": "Yes.", "rejected": "no no no no"} for prompt in prompts])
    shared = {"name": "t", "output": str(tmp_path / "runs"), "model": {"path": "tiny"}}
    run(RunConfig.model_validate({**shared, "compute": {"dtype": "float32", "threads": 1, "token_budget": 64}, **STAGES[stage](tmp_path)}))
    assert all(count >= 4 for count in passes.values())
    assert passes
