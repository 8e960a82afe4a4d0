"""Reward model and critic: cases E1 and E2, files for plain transformers, the head, the stored template."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from model_rows import ragged_batch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tether.data.batches import TextBatch, pad_examples
from tether.errors import DataError, MissingHeadError, ModelError
from tether.models.adapters import LoraSpec
from tether.models.policy import Policy
from tether.models.reward import RewardModel, Truncation
from tether.models.value import Critic, critic_from_reward_model
from tether.types import Message

PROMPTS = ["Say hello", "Two plus two?", "A much longer question about the sea and the stars"]
ANSWERS = ["hello", "5", "blue"]


def conversation(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def rows(ids: list[list[int]], attention: list[list[int]]) -> TextBatch:
    mask_BT = torch.tensor(attention, dtype=torch.bool)
    return TextBatch(torch.tensor(ids), mask_BT, torch.zeros_like(mask_BT))


def score_at(model: RewardModel, ids: list[int]) -> float:
    """The head at the last of unpadded ids, through the trunk alone."""
    hidden = model.trunk(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
    return float((model.head.weight[0] @ hidden).detach())


def test_e1_the_last_token_is_found_by_the_mask(tiny: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    left = rows([[0, 0, 5, 6]], [[0, 0, 1, 1]])
    right = rows([[5, 6, 0, 0]], [[1, 1, 0, 0]])
    pad_is_end = rows([[5, 2, 6, 2]], [[1, 1, 1, 0]])
    pad_inside = rows([[5, 0, 0, 2]], [[1, 1, 1, 0]])
    for batch, live in ((left, [5, 6]), (right, [5, 6]), (pad_is_end, [5, 2, 6]), (pad_inside, [5, 0, 0])):
        assert float(model.score_batch(batch).detach()) == pytest.approx(score_at(model, live), abs=1e-5)


def test_e1_alone_and_among_longer_texts(tiny: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    batch = ragged_batch(tuple((3 + n, 2 + 3 * n) for n in range(8)))
    together_B = model.score_batch(batch)
    for row in range(8):
        torch.testing.assert_close(
            model.score_batch(batch.rows([row]))[0], together_B[row], atol=1e-5, rtol=0
        )
    with pytest.raises(DataError, match="row 2"):
        model.score_batch(rows([[5, 6], [5, 6]], [[1, 1], [0, 0]]))


def one_step(model: RewardModel, batch: TextBatch) -> None:
    """One step up on the mean score, with every trainable parameter."""
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    (-model.score_batch(batch).mean()).backward()
    optimiser.step()
    optimiser.zero_grad()


def test_e2_lora_step_saved_and_loaded_by_plain_transformers(
    tiny: Path, tmp_path: Path, fresh_process
) -> None:
    texts = [
        RewardModel.from_base(tiny).format.example(conversation(p), a)
        for p, a in zip(PROMPTS, ANSWERS, strict=True)
    ]
    batch = pad_examples(texts, 0)
    models = {
        "full": RewardModel.from_base(tiny, seed=3),
        "lora": RewardModel.from_base(tiny, seed=3, lora=LoraSpec(4, 8)),
    }
    for name, model in models.items():
        before_B = model.score_batch(batch).detach()
        head = model.head.weight.detach().clone()
        one_step(model, batch)
        one_step(model, batch)
        assert not torch.equal(model.head.weight, head), name
        assert float((model.score_batch(batch) - before_B).detach().abs().min()) > 1e-3, name
        model.normalise(0.5, 2.0)
        model.save(tmp_path / name)
    code = f"""
import json, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
out = {{}}
for name in ("full", "lora"):
    folder = {str(tmp_path)!r} + "/" + name
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    ids = torch.tensor({batch.token_ids_BT.tolist()})
    mask = torch.tensor({batch.attention_mask_BT.long().tolist()})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token_id == model.config.pad_token_id == 0
    out[name] = model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()
print(json.dumps(out))
"""
    found = json.loads(fresh_process(code).splitlines()[-1])
    for name, model in models.items():
        torch.testing.assert_close(
            torch.tensor(found[name]), model.score_batch(batch).detach(), atol=1e-6, rtol=1e-6
        )
        again = RewardModel.load(tmp_path / name)
        torch.testing.assert_close(again.score_batch(batch), model.score_batch(batch), atol=1e-6, rtol=1e-6)
        assert again.score_offset == -0.25


def test_e2_a_checkpoint_without_the_head_is_refused_by_name(tiny: Path) -> None:
    with pytest.raises(MissingHeadError, match=r"score\.weight"):
        RewardModel.load(tiny)
    assert RewardModel.load(tiny, new_head=True).head.out_features == 1


def test_another_number_of_labels_is_refused(tiny: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="3 labels"):
        RewardModel.load(tmp_path)
    with pytest.raises(ModelError, match="3 labels"):
        RewardModel.from_base(tmp_path)


def test_a_reward_model_is_no_policy_although_its_weights_would_load(tiny: Path, tmp_path: Path) -> None:
    RewardModel.from_base(tiny, seed=1).save(tmp_path)
    with pytest.raises(ModelError, match=r"is a model that scores \(score.weight\).*RewardModel.load"):
        Policy.load(tmp_path)


def test_new_head_is_drawn_from_the_seed_with_the_stated_std(tiny: Path) -> None:
    one, same, other = (RewardModel.from_base(tiny, seed=seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert float(one.detach().std()) == pytest.approx(65**-0.5, rel=0.3)


def test_texts_are_rendered_by_the_stored_template(tiny: Path, tmp_path: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    prompts = [conversation(p) for p in PROMPTS]
    scores = model.score_texts(prompts, ANSWERS)
    assert model.score_texts(prompts, ANSWERS, token_budget=1) == pytest.approx(scores, abs=1e-5)
    model.save(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for prompt, answer, score in zip(PROMPTS, ANSWERS, scores, strict=True):
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(turns, tokenize=False).removesuffix("\n")
        logits = plain(**tokenizer(text, return_tensors="pt")).logits
        assert float(logits.detach()) == pytest.approx(score, abs=1e-5)
    with pytest.raises(DataError, match="3 prompts but 1"):
        model.score_texts(prompts, ANSWERS[:1])
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}<|im_end|>")
    with pytest.raises(ModelError, match="template"):
        RewardModel.load(tmp_path)


def test_long_texts_are_refused_or_cut_on_the_left_by_rule(tiny: Path, tmp_path: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    model.max_length = 8
    with pytest.raises(DataError, match=r"text 1 has \d+ tokens, the reward model takes 8"):
        model.score_texts([conversation(PROMPTS[2])], ["blue"])
    model.truncation = Truncation.LEFT
    cut = model.score_texts([conversation(PROMPTS[2])], ["blue"])[0]
    ids = model.format.example(conversation(PROMPTS[2]), "blue").token_ids[-8:]
    assert cut == pytest.approx(score_at(model, list(ids)), abs=1e-5)
    model.save(tmp_path)
    again = RewardModel.load(tmp_path)
    assert (again.max_length, again.truncation) == (8, Truncation.LEFT)


def test_normalised_scores_have_mean_zero_and_std_one(tiny: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    batch = ragged_batch(tuple((3, n) for n in range(8)))
    for _ in range(2):  # twice is once
        raw_B = model.score_batch(batch).detach()
        model.normalise(float(raw_B.mean()), float(raw_B.std()))
        scores_B = model.score_batch(batch).detach() + model.score_offset
        assert float(scores_B.mean()) == pytest.approx(0, abs=1e-5)
        assert float(scores_B.std()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ModelError, match="std above 0"):
        model.normalise(0.0, 0.0)


def with_pad(folder: Path, tiny: Path, pad: str | None, unk: str | None) -> Path:
    """The tiny model with other special tokens, as SmolLM2 (pad = end) and GPT-2 (no pad) have them."""
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "tokenizer_config.json").read_text())
    config = {**config, "pad_token": pad, "unk_token": unk}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    return folder


@pytest.mark.parametrize(("pad", "unk", "expected"), [("<|im_end|>", "<|endoftext|>", 3), (None, None, None)])
def test_plain_transformers_reads_the_end_token_though_pad_was_end(
    tiny: Path, tmp_path: Path, pad: str | None, unk: str | None, expected: int | None
) -> None:
    model = RewardModel.from_base(with_pad(tmp_path / "base", tiny, pad, unk), seed=1)
    assert model.tokenizer.pad_token_id not in model.format.eos_ids
    assert expected in (None, model.tokenizer.pad_token_id)
    texts = [model.format.example(conversation(p), a) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    batch = pad_examples(texts, model.format.pad_id)
    assert all(text.token_ids[-1] == 2 for text in texts)
    model.save(tmp_path / "saved")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    logits = plain(input_ids=batch.token_ids_BT, attention_mask=batch.attention_mask_BT.long()).logits[:, 0]
    torch.testing.assert_close(logits, model.score_batch(batch), atol=1e-5, rtol=0)


def test_scores_are_float32_under_autocast_and_differentiable(tiny: Path, batch: TextBatch) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    model.enable_activation_checkpointing()
    with torch.autocast("cpu", torch.bfloat16):
        scores_B = model.score_batch(batch)
    assert scores_B.dtype == torch.float32
    scores_B.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def live_values(critic: Critic, batch: TextBatch) -> Tensor:
    return critic.forward_values(batch).detach()


def test_critic_starts_at_zero_and_saves(tiny: Path, tmp_path: Path, batch: TextBatch) -> None:
    critic = Critic.load(tiny)
    assert float(live_values(critic, batch).abs().sum()) == 0
    with torch.no_grad():
        critic.value_head.weight.fill_(0.5)
    critic.enable_activation_checkpointing()
    critic.forward_values(batch).sum().backward()
    assert all(p.grad is not None for p in critic.parameters())
    critic.save(tmp_path)
    torch.testing.assert_close(live_values(Critic.load(tmp_path, "saved"), batch), live_values(critic, batch))
    assert float(live_values(Critic.load(tmp_path), batch).abs().sum()) == 0
    with pytest.raises(MissingHeadError, match=r"value_head\.safetensors"):
        Critic.load(tiny, "saved")


def test_critic_from_a_reward_model_values_a_state_as_its_score(tiny: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    model.normalise(0.3, 2.0)
    critic = critic_from_reward_model(model)
    ids = [5, 6, 7, 8]
    batch = TextBatch(
        torch.tensor([ids]), torch.ones(1, 4, dtype=torch.bool), torch.tensor([[False, False, True, True]])
    )
    values_BT = live_values(critic, batch)
    assert float(values_BT[0, 3]) == pytest.approx(score_at(model, ids[:3]) + model.score_offset, abs=1e-5)
    assert values_BT[0, :2].tolist() == [0, 0]
    with torch.no_grad():  # a copy: training it leaves the reward model alone
        critic.trunk.norm.weight.zero_()
    assert float(model.trunk.norm.weight.detach().sum()) > 0
    with pytest.raises(ModelError, match="adapters"):
        critic_from_reward_model(RewardModel.from_base(tiny, lora=LoraSpec(2)))


def test_a_critic_beside_a_policy_is_a_copy_with_a_zero_head(tiny: Path, batch: TextBatch) -> None:
    policy = Policy.load(tiny)
    critic = Critic.beside(policy.model)
    assert float(live_values(critic, batch).abs().sum()) == 0
    own, others = dict(critic.trunk.named_parameters()), dict(policy.model.get_decoder().named_parameters())
    assert all(torch.equal(own[name], others[name]) and own[name] is not others[name] for name in others)
    with pytest.raises(ModelError, match="holds adapters"):
        Critic.beside(Policy.load(tiny, lora=LoraSpec(2)).model)


# -- what is stored beside the weights ---------------------------------------------------------------------------------------


def test_long_texts_are_cut_by_the_stored_rule_and_counted(tiny: Path, tmp_path: Path) -> None:
    prompt, answer = [conversation("Say hello")], ["one two three four five"]
    for rule in ("right", "left"):
        model = RewardModel.from_base(tiny, seed=1)
        ids = model.format.example(prompt[0], answer[0]).token_ids
        model.max_length, model.truncation = len(ids) - 3, Truncation(rule)
        model.save(tmp_path / rule)
        again = RewardModel.load(tmp_path / rule)
        (score,) = again.score_texts(prompt, answer)
        kept = list(ids[:-3] if rule == "right" else ids[3:])
        assert score == pytest.approx(score_at(again, kept), abs=1e-5)
        assert again.num_cut == 1
        again.score_texts(prompt, ["one"])
        assert again.num_cut == 1
    right = RewardModel.load(tmp_path / "right")
    right.max_length = len(right.format.prompt_ids(prompt[0]))
    with pytest.raises(DataError, match=r"text 1 has \d+ tokens, and its prompt alone \d+, the reward model takes \d+"):
        right.score_texts(prompt, answer)


def test_a_batch_that_is_refused_counts_no_cut(tiny: Path) -> None:
    """What was cut before the refusal is read once more when the texts are asked alone, and counts then."""
    model = RewardModel.from_base(tiny, seed=1)
    short, long = conversation("Hi"), conversation(" ".join(["long"] * 60))
    model.max_length, model.truncation = len(model.format.example(short, "one two three").token_ids) - 1, Truncation.RIGHT
    with pytest.raises(DataError, match="text 2 has"):
        model.score_texts([short, long], ["one two three", "one"])
    assert model.num_cut == 0
    model.score_texts([short], ["one two three"])
    assert model.num_cut == 1


def test_normalising_keeps_what_a_unit_means(tiny: Path, tmp_path: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    model.grow_heads(3, seed=5)
    prompts = [conversation(p) for p in PROMPTS]
    before = model.score_texts_with_std(prompts, ANSWERS)
    model.normalise(0.5, 4.0)
    model.save(tmp_path)
    again = RewardModel.load(tmp_path)
    assert (again.log_odds_per_unit, again.score_offset) == (4.0, -0.125)
    for was, now in zip(before, again.score_texts_with_std(prompts, ANSWERS), strict=True):
        assert (now.mean * 4, now.std * 4) == (pytest.approx(was.mean, abs=1e-5), pytest.approx(was.std, abs=1e-5))
    single = RewardModel.from_base(tiny, seed=1)
    single.save(tmp_path)
    assert RewardModel.load(tmp_path).score_heads is None  # nothing is left of heads that lay there before


def test_a_folder_of_an_earlier_version_is_read_and_of_a_later_one_refused(tiny: Path, tmp_path: Path) -> None:
    RewardModel.from_base(tiny, seed=1).save(tmp_path)
    file = tmp_path / "tether_reward.json"
    now = json.loads(file.read_text())
    first = {"fingerprint": now["fingerprint"], "max_length": 99, "truncation": "error", "score_offset": 0.25, "schema_version": 1}
    file.write_text(json.dumps(first))
    old = RewardModel.load(tmp_path)
    assert (old.max_length, old.score_offset, old.log_odds_per_unit, old.tie_model) == (99, 0.25, 1.0, "")
    for spoilt, match in [
        ({"schema_version": 3}, "reads up to 2"), ({"log_odds_per_unit": 0}, "above 0"), ({"more": 1}, "cannot be read"),
        ({"score_offset": math.nan}, "score_offset, which is added to every score, must be finite"),
        ({"truncation": "middle"}, "'middle' is not a valid Truncation; put it back"),
    ]:  # fmt: skip
        file.write_text(json.dumps(now | spoilt))
        with pytest.raises(ModelError, match=match):
            RewardModel.load(tmp_path)


def test_another_tokenizer_is_refused(tiny: Path, tmp_path: Path) -> None:
    RewardModel.from_base(tiny, seed=1).save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["hello"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="vocabulary or rules"):
        RewardModel.load(tmp_path)


def test_heads_that_do_not_fit_are_refused(tiny: Path, tmp_path: Path) -> None:
    model = RewardModel.from_base(tiny, seed=1)
    model.grow_heads(2, seed=0)
    model.save(tmp_path)
    heads = tmp_path / "tether_heads.safetensors"
    heads.write_bytes(heads.read_bytes()[:-8])
    with pytest.raises(ModelError, match="tether_heads"):
        RewardModel.load(tmp_path)
