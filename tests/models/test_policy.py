"""Policy against plain transformers: values, gradients, precision, dropout (B5), padding, files."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest
import torch
from model_rows import ragged_batch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from tether.data.batches import TextBatch, pad_examples
from tether.errors import ModelError
from tether.models import trunk
from tether.models.policy import Policy
from tether.text.chat import TokenizedExample
from tether.types import Message

pytestmark = pytest.mark.usefixtures("fresh_process")  # it starts while the first tests run


def plain_logprobs(model: nn.Module, batch: TextBatch, temperature: float) -> Tensor:
    """Row by row without any padding: what the batch must say."""
    out_BT = torch.zeros(batch.token_ids_BT.shape)
    for row in range(batch.num_rows):
        length = int(batch.attention_mask_BT[row].sum())
        ids_1T = batch.token_ids_BT[row : row + 1, :length]
        table_TV = torch.log_softmax(model(input_ids=ids_1T).logits[0].float() / temperature, -1)
        for column in range(1, length):
            if batch.response_mask_BT[row, column]:
                out_BT[row, column] = table_TV[column - 1, ids_1T[0, column]]
    return out_BT


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_logprobs_equal_plain_transformers_with_padding(
    tiny: Path, batch: TextBatch, temperature: float
) -> None:
    ours = Policy.load(tiny).forward_response(batch, temperature).logprobs_BT
    plain = plain_logprobs(AutoModelForCausalLM.from_pretrained(tiny), batch, temperature)
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=0)
    assert ours.dtype == torch.float32
    assert bool((ours[~batch.response_mask_BT] == 0).all())


def test_gradient_equals_that_of_the_plain_path(
    tiny: Path, batch: TextBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trunk, "CHUNK_ELEMENTS", 384 * 5)  # 13 live tokens in chunks of 5
    policy, plain = Policy.load(tiny), AutoModelForCausalLM.from_pretrained(tiny)
    plain.get_input_embeddings().padding_idx = None
    weights_BT = torch.randn(batch.token_ids_BT.shape, generator=torch.Generator().manual_seed(0))
    out = policy.forward_response(batch, 0.7)
    (out.logprobs_BT * weights_BT).sum().backward()
    (plain_logprobs(plain, batch, 0.7) * weights_BT).sum().backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-5, rtol=1e-4, msg=name)


def test_entropy_is_of_the_tempered_distribution(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    hot = policy.forward_response(batch, 1e4, entropy=True).entropy_BT
    assert hot is not None
    live = hot[batch.response_mask_BT]
    torch.testing.assert_close(
        live, torch.full_like(live, float(torch.tensor(384.0).log())), atol=1e-3, rtol=0
    )
    assert bool((hot[~batch.response_mask_BT] == 0).all())
    assert policy.forward_response(batch, 1.0).entropy_BT is None


def test_what_stands_in_pads_changes_nothing(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    wild = torch.where(batch.attention_mask_BT, batch.token_ids_BT, 10**6)
    other = TextBatch(wild, batch.attention_mask_BT, batch.response_mask_BT)
    assert torch.equal(
        policy.forward_response(batch, 1.0).logprobs_BT, policy.forward_response(other, 1.0).logprobs_BT
    )


def test_left_padded_rows_score_the_same(tiny: Path) -> None:
    policy = Policy.load(tiny)
    right = ragged_batch(((2, 3),))
    shift = [
        nn.functional.pad(x, (2, 0))
        for x in (right.token_ids_BT, right.attention_mask_BT, right.response_mask_BT)
    ]
    left = policy.forward_response(TextBatch(*shift), 1.0).logprobs_BT[:, 2:]
    torch.testing.assert_close(left, policy.forward_response(right, 1.0).logprobs_BT, atol=1e-5, rtol=0)


def test_a_batch_without_live_tokens_is_all_zero_and_differentiable(tiny: Path) -> None:
    policy = Policy.load(tiny, value_head="shared")
    out = policy.forward_response(ragged_batch(((3, 0), (5, 0))), 1.0, entropy=True, values=True)
    assert out.entropy_BT is not None
    assert out.values_BT is not None
    (out.logprobs_BT + out.entropy_BT + out.values_BT).sum().backward()
    assert float(out.logprobs_BT.detach().abs().sum()) == 0
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in policy.parameters())


def test_logprobs_are_float32_under_bf16_autocast(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    exact = policy.forward_response(batch, 1.0).logprobs_BT
    with torch.autocast("cpu", torch.bfloat16):
        mixed = policy.forward_response(batch, 1.0).logprobs_BT
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, atol=0.1, rtol=0)
    mixed.sum().backward()
    # rounded to bfloat16, numbers near -6 would be multiples of 1/32
    assert not torch.equal(mixed, mixed.bfloat16().float())


def test_column_zero_and_greedy_are_refused(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    first = batch.response_mask_BT.clone()
    first[0, 0] = True
    with pytest.raises(ValueError, match="column 0"):
        policy.forward_response(TextBatch(batch.token_ids_BT, batch.attention_mask_BT, first), 1.0)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        policy.forward_response(batch, 0.0)
    with pytest.raises(ModelError, match="no value head"):
        policy.forward_response(batch, 1.0, values=True)


def dropout_model(folder: Path, tiny: Path) -> Path:
    """GPT-2 (dropout modules) with every rate at .1, beside the tiny tokenizer."""
    config = GPT2Config(
        vocab_size=384,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        eos_token_id=2,
        bos_token_id=2,
    )
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return with_tokenizer(folder, tiny)


def with_tokenizer(folder: Path, tiny: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    return folder


def test_b5_dropout_is_off_in_both_modes_and_the_mode_is_kept(
    tiny: Path, tmp_path: Path, batch: TextBatch
) -> None:
    policy = Policy.load(dropout_model(tmp_path, tiny))
    old = policy.eval().forward_response(batch, 1.0).logprobs_BT.detach()
    policy.train()
    for _ in range(2):  # two epochs at learning rate zero
        ratio = torch.exp(policy.forward_response(batch, 1.0).logprobs_BT - old)
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-6, rtol=0)
    assert policy.model.training
    policy.eval().forward_response(batch, 1.0)
    assert not policy.model.training
    policy.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["resid_pdrop"] == 0.1


def test_b5_attention_dropout_of_a_llama(tiny: Path, tmp_path: Path, batch: TextBatch) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    policy = Policy.load(tmp_path)
    old = policy.eval().forward_response(batch, 1.0).logprobs_BT
    assert torch.equal(policy.train().forward_response(batch, 1.0).logprobs_BT, old)


def test_a_soft_capped_model_takes_the_plain_path_and_says_so(
    tiny: Path, tmp_path: Path, batch: TextBatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Gemma2Config(
        vocab_size=384,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=1,
        sliding_window=64,
    )
    torch.manual_seed(0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        policy = Policy.load(with_tokenizer(tmp_path, tiny), value_head="shared")
    assert "plain path" in caplog.text
    assert not policy.head_is_plain
    out = policy.forward_response(batch, 0.5, entropy=True, values=True)
    plain = plain_logprobs(AutoModelForCausalLM.from_pretrained(tmp_path), batch, 0.5)
    torch.testing.assert_close(out.logprobs_BT, plain, atol=1e-5, rtol=0)
    out.logprobs_BT.sum().backward()


def test_the_row_of_the_pad_token_is_trained(tiny: Path) -> None:
    """nn.Embedding drops the gradient of padding_idx; here the pad id 0 is an ordinary prompt token."""
    policy = Policy.load(tiny)
    assert policy.model.get_input_embeddings().padding_idx is None
    policy.model.get_output_embeddings().weight = nn.Parameter(
        policy.model.get_output_embeddings().weight.clone()
    )
    batch = pad_examples([TokenizedExample((0, 7, 8), (False, False, True))], 0)
    policy.forward_response(batch, 1.0).logprobs_BT.sum().backward()
    gradient_VH = policy.model.get_input_embeddings().weight.grad
    assert gradient_VH is not None
    assert float(gradient_VH[0].abs().sum()) > 0


def test_activation_checkpointing_changes_no_number(tiny: Path, batch: TextBatch) -> None:
    plain, lean = Policy.load(tiny), Policy.load(tiny)
    lean.enable_activation_checkpointing()
    calls = []
    lean.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    for policy in (plain, lean):
        policy.forward_response(batch, 1.0).logprobs_BT.sum().backward()
    assert len(calls) == 2  # once forward, once again in the backward pass
    for ours, theirs in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-5)


def test_the_head_never_holds_all_positions(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors kept for the backward pass of the head stay far below [N, V]."""
    monkeypatch.setattr(trunk, "CHUNK_ELEMENTS", 384 * 8)
    policy, batch = Policy.load(tiny), ragged_batch(((1, 100), (1, 100)))
    kept: list[int] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x.numel() if x.shape[-1:] == (384,) else 0)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        policy.forward_response(batch, 1.0, entropy=True)
    assert max(kept) <= 8 * 384


def test_saved_policy_is_the_same_for_plain_transformers(
    tiny: Path, tmp_path: Path, fresh_process, batch
) -> None:
    policy = Policy.load(tiny, value_head="shared")
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.1)
        policy.value_head.weight.fill_(0.5)
    policy.save(tmp_path)
    ids = batch.token_ids_BT[0, :13].tolist()
    code = f"""
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, info = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
assert model.lm_head.weight is model.model.embed_tokens.weight
tokenizer = AutoTokenizer.from_pretrained({str(tmp_path)!r})
ids = torch.tensor([{ids}])
table = torch.log_softmax(model(input_ids=ids).logits[0], -1)
print(json.dumps({{
    "logprobs": [float(table[t - 1, ids[0, t]]) for t in range(4, 13)],
    "eos": model.generation_config.eos_token_id,
    "text": tokenizer.apply_chat_template([{{"role": "user", "content": "Hi"}}], tokenize=False),
}}))
"""
    found = json.loads(fresh_process(code).splitlines()[-1])
    ours = policy.forward_response(batch, 1.0).logprobs_BT[0, 4:13]
    torch.testing.assert_close(torch.tensor(found["logprobs"]), ours, atol=1e-5, rtol=0)
    assert found["eos"] == [2, 3]
    assert found["text"] == "<|im_start|>user\nHi<|im_end|>\n"
    with safe_open(tmp_path / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 - not a dict


def test_a_saved_value_head_comes_back(tiny: Path, tmp_path: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny, value_head="shared")
    out = policy.forward_response(batch, 1.0, values=True).values_BT
    assert out is not None
    assert float(out.detach().abs().sum()) == 0
    with torch.no_grad():
        policy.value_head.weight.fill_(0.5)
    policy.save(tmp_path)
    again = Policy.load(tmp_path, value_head="shared")
    assert again.weights_fingerprint() == policy.weights_fingerprint()
    expected = policy.forward_response(batch, 1.0, values=True).values_BT
    assert expected is not None
    assert bool((expected[batch.response_mask_BT] != 0).all())
    torch.testing.assert_close(again.forward_response(batch, 1.0, values=True).values_BT, expected)


def test_values_speak_of_the_state_before_the_token(tiny: Path) -> None:
    policy = Policy.load(tiny, value_head="shared")
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    one, two = (pad_examples([TokenizedExample((5, 6, last), (False, False, True))], 0) for last in (7, 8))
    first = policy.forward_response(one, 1.0, values=True).values_BT
    second = policy.forward_response(two, 1.0, values=True).values_BT
    assert first is not None
    assert float(first.detach()[0, 2]) != 0
    torch.testing.assert_close(first, second)  # the token itself is not part of its state


def test_fingerprint_changes_with_any_weight(tiny: Path) -> None:
    policy, same = Policy.load(tiny), Policy.load(tiny)
    assert policy.weights_fingerprint() == same.weights_fingerprint()
    with torch.no_grad():
        same.model.model.norm.weight[3] += 1e-3
    assert policy.weights_fingerprint() != same.weights_fingerprint()


def test_pickled_weights_alone_are_refused(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model.bin\)"):
        Policy.load(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="no weights"):
        Policy.load(tmp_path)


def test_folders_that_are_not_models_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        Policy.load(tmp_path)
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-5000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        Policy.load(tmp_path)
    with pytest.raises(ModelError, match="dtype 'fp8'"):
        Policy.load(tiny, dtype="fp8")
    with pytest.raises(ModelError, match="set local_files_only to false"):
        Policy.load("nobody/nothing-here")


def test_missing_weights_are_refused(tiny: Path, tmp_path: Path) -> None:
    for file in tiny.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"lacks 9 weights \(model.layers.2"):
        Policy.load(tmp_path)


@pytest.mark.slow
def test_smollm2_answers_and_its_end_token_is_trained() -> None:
    from tether.models.resolve import resolve_model

    policy = Policy.load(resolve_model("smollm2"))
    ids = policy.format.prompt_ids((Message("user", "What is the capital of France?"),))
    out = policy.model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False)[
        0, len(ids) :
    ].tolist()
    assert policy.format.decode(out) == "The capital of France is Paris."
    assert out[-1] == policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert out[-1] in policy.format.eos_ids
    assert policy.tokenizer.tokenize("a  1") == ["a", "ĠĠ", "1"]  # digits are split off before words
    assert policy.model.get_input_embeddings().padding_idx is None
    assert policy.head_is_plain
    batch = pad_examples(
        [policy.format.example((Message("user", "What is the capital of France?"),), "Paris.")], 2
    )
    logprobs_BT = policy.forward_response(batch, 1.0).logprobs_BT
    plain = plain_logprobs(AutoModelForCausalLM.from_pretrained(resolve_model("smollm2")), batch, 1.0)
    torch.testing.assert_close(logprobs_BT, plain, atol=1e-4, rtol=0)


def test_short_names_are_resolved_and_unknown_ones_never_ask_the_network():
    assert Policy.load("tiny").format.eos_ids
    with pytest.raises(ModelError, match="no model 'tinny'"):
        Policy.load("tinny")


def test_a_folder_without_tokenizer_files_is_named_and_not_its_rows(tmp_path: Path) -> None:
    small = GPT2Config(vocab_size=64, n_positions=32, n_embd=8, n_layer=1, n_head=1)
    GPT2LMHeadModel(small).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no usable tokenizer"):
        Policy.load(tmp_path)
