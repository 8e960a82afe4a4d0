"""A folder whose config.json and weights do not belong together, or whose numbers are none, is refused with what is wrong in it."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tether.errors import ModelError
from tether.models import files
from tether.models.adapters import LoraSpec, add_lora

SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def change(folder, **settings) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def load(folder):
    loaded = files.load_model(AutoModelForCausalLM, str(folder), dtype="float32", local_files_only=True, trust_remote_code=False)
    files.refuse_missing(str(folder), loaded)
    return loaded.model


def test_a_whole_folder_is_loaded(folder):
    assert load(folder).model.layers[0].self_attn.q_proj.bias is not None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attention_bias": False}, r"holds 8 weights that its config\.json has no place for \(model\.layers\.0\.self_attn\.k_proj\.bias"),
        ({"num_hidden_layers": 1}, r"weights that its config\.json has no place for \(model\.layers\.1\."),
        ({"num_hidden_layers": 3}, r"lacks \d+ weights \(model\.layers\.2\..* they would be random"),
        ({"num_attention_heads": 2, "head_dim": 4}, r"holds model\.layers\.0\.self_attn\..* of shape .*, expected .*: its config\.json"),
        ({"num_key_value_heads": 1}, r"k_proj\.bias of shape \(8,\), expected \(4,\)"),
        ({"vocab_size": 50}, r"holds lm_head\.weight of shape \(64, 16\), expected \(50, 16\)"),
        ({"num_attention_heads": 0}, "cannot be loaded: .*zero"),
        ({"num_hidden_layers": 3, "model_type": "qwen2", "layer_types": ["full_attention"] * 2}, "cannot be loaded: "),
    ],
)
def test_a_config_that_is_not_that_of_the_weights_is_refused(folder, settings, told):
    change(folder, **settings)
    with pytest.raises(ModelError, match=told):
        load(folder)


def test_weights_of_parts_that_the_model_has_not_are_left_alone(folder):
    model = LlamaForCausalLM.from_pretrained(folder)
    beside = {"model.vision_tower.x.weight": torch.ones(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    model.save_pretrained(folder, state_dict={**model.state_dict(), **beside})
    load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_named(folder, value):
    model = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4] = value
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.down_proj\.weight holds numbers that are not finite"):
        load(folder)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "model.embed_tokens"])
def test_embeddings_and_output_heads_take_no_adapter(target):
    pytest.importorskip("peft")
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with pytest.raises(ModelError, match=f"LoRA targets {target}: embeddings and output heads take no adapter here"):
        add_lora(model, LoraSpec(rank=2, targets=("q_proj", target)), 0)
