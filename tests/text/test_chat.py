"""ChatFormat on tokenizers made on the spot: ids agree between SFT, scoring and sampling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tether.data.batches import pad_examples
from tether.data.lengths import comparison_pairs, demonstration_examples
from tether.errors import DataError, ModelError
from tether.text.chat import ChatFormat, TokenizedExample, answer_length, sampled_example
from tether.types import Comparison, Demonstration, Message, StopReason

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BOS_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '[' + m['role'] + ']' + m['content'] | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
U, A, S = "user", "assistant", "system"


def make_tokenizer(
    template=None, *, adds="", special=("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"), **names
):
    """Byte-level, one token per byte plus the merges he, ll, llo, hello."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    for merged in ("he", "ll", "llo", "hello"):
        vocab[merged] = len(vocab)
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if adds:
        ids = [(t, raw.token_to_id(t)) for t in ("<s>", "</s>")]
        raw.post_processor = processors.TemplateProcessing(single=adds, special_tokens=ids)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"} | names
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **{k: v for k, v in names.items() if v})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def chatml():
    return ChatFormat(make_tokenizer(CHATML, eos_token="<|im_end|>", bos_token="<|im_start|>"))


def ids_of(format, *tokens):
    return tuple(format.tokenizer.convert_tokens_to_ids(list(tokens)))


def live_text(format, example):
    ids = [t for t, live in zip(example.token_ids, example.response_mask, strict=True) if live]
    return format.tokenizer.decode(ids)


# ---- ends and filler


def test_a5_every_end_token_counts():
    tokenizer = make_tokenizer(CHATML)
    config = GenerationConfig(eos_token_id=[5, 9])
    format = ChatFormat(tokenizer, eos_ids=[7], generation_config=config)
    own, turn_end = ids_of(format, "</s>", "<|im_end|>")
    assert format.eos_ids == tuple(sorted({5, 7, 9, own, turn_end}))


def test_a5_generation_config_with_a_single_id():
    format = ChatFormat(make_tokenizer(), generation_config=GenerationConfig(eos_token_id=5))
    assert format.eos_ids == (5, *ids_of(format, "</s>"))


def test_a5_answer_ends_at_the_first_of_several_end_tokens():
    ends = (32007, 32000)
    assert answer_length([9, 32007, 0, 0], ends) == 2
    assert answer_length([9, 0, 32000, 32007], ends) == 3
    assert answer_length([9, 8, 7], ends) == 3
    assert answer_length([], ends) == 0
    batch = pad_examples([sampled_example([1], [9, 32007]), sampled_example([1], [9, 8, 7, 6])], pad_id=0)
    assert batch.response_mask_BT.tolist()[0] == [False, True, True, False, False]
    assert StopReason.LENGTH is not StopReason.STOP  # the ending is told by the engine; ids are not consulted


def test_pad_id_is_the_pad_token_or_else_the_end_token():
    format = ChatFormat(make_tokenizer())
    assert (format.pad_id,) == ids_of(format, "<pad>")
    format = ChatFormat(make_tokenizer(pad_token=None))
    assert (format.pad_id,) == ids_of(format, "</s>")


def test_no_end_token_at_all_is_refused():
    with pytest.raises(ModelError, match="no end token"):
        ChatFormat(make_tokenizer(eos_token=None))


# ---- J1: one beginning token


@pytest.mark.parametrize("adds", ["", "<s> $A", "<s> $A </s>"])
def test_j1_template_with_bos_gives_one_bos(adds):
    format = ChatFormat(make_tokenizer(BOS_TEMPLATE, adds=adds))
    (bos,) = ids_of(format, "<s>")
    prompt = (Message(U, "hi"),)
    ids = format.prompt_ids(prompt)
    assert ids[0] == bos
    assert ids.count(bos) == 1
    assert ids_of(format, "</s>")[0] != ids[-1]
    assert format.example(prompt, "hello").token_ids.count(bos) == 1


def test_j1_template_without_bos_keeps_the_tokenizers():
    format = ChatFormat(make_tokenizer(CHATML, adds="<s> $A"))
    (bos,) = ids_of(format, "<s>")
    ids = format.prompt_ids((Message(U, "hi"),))
    assert ids[0] == bos
    assert ids.count(bos) == 1
    assert bos not in ChatFormat(make_tokenizer(CHATML)).prompt_ids((Message(U, "hi"),))


@pytest.mark.parametrize("text", ["hi", "<s>hi", "<s><s>hi"])
def test_j1_plain_text_has_one_bos(text):
    format = ChatFormat(make_tokenizer(adds="<s> $A"))
    assert format.prompt_ids(text) == list(ids_of(format, "<s>", "h", "i"))
    both = format.example(text, "hello").token_ids
    assert both == ids_of(format, "<s>", "h", "i", "hello", "</s>")


# ---- J3: sampled ids are training ids


def test_j3_sampled_ids_are_never_encoded_again(chatml):
    prompt = (Message(U, "hi"),)
    prompt_ids = chatml.prompt_ids(prompt)
    drawn = ids_of(chatml, "he", "llo", "<|im_end|>")
    assert chatml.decode(drawn) == "hello"
    assert chatml._encode("hello") == list(ids_of(chatml, "hello"))  # encoding the text gives other ids
    example = sampled_example(prompt_ids, drawn)
    assert example.token_ids == (*prompt_ids, *drawn)
    assert example.num_live == 3
    batch = pad_examples([example], chatml.pad_id)
    assert batch.token_ids_BT[batch.response_mask_BT].tolist() == list(drawn)


@pytest.mark.parametrize("ended", [True, False])
def test_j3_next_prompt_starts_with_the_sampled_ids(chatml, ended):
    prompt = (Message(U, "hi"),)
    drawn = ids_of(chatml, "he", "llo", *(["<|im_end|>"] if ended else []))
    so_far = [*chatml.prompt_ids(prompt), *drawn]
    ids = chatml.next_prompt_ids([*prompt, Message(A, "hello")], so_far, [Message("tool", "42")])
    assert ids[: len(so_far)] == so_far
    text = chatml.tokenizer.decode(ids)
    whole = [*prompt, Message(A, "hello"), Message("tool", "42")]
    assert text == chatml.prompt_text(whole)  # same text, other ids


# ---- examples


def test_single_turn_is_prompt_content_end(chatml):
    prompt = (Message(U, "hi"),)
    example = chatml.example(prompt, "hello you")
    answer = [*chatml._encode("hello you"), *ids_of(chatml, "<|im_end|>")]
    assert example == sampled_example(chatml.prompt_ids(prompt), answer)
    assert example == chatml.example(prompt, (Message(A, "hello you"),))


def test_default_system_message_of_the_template_is_kept(chatml):
    assert "You are helpful" in chatml.prompt_text((Message(U, "hi"),))
    assert "You are helpful" not in chatml.prompt_text((Message(S, "x"), Message(U, "hi")))


def test_plain_completion_ends_once():
    format = ChatFormat(make_tokenizer())
    expected = sampled_example(ids_of(format, "h", "i"), ids_of(format, "hello", "</s>"))
    assert format.example("hi", "hello") == expected
    assert format.example("hi", "hello</s>") == expected
    assert format.example("hi", "hello</s></s>") == expected


@pytest.mark.parametrize("answer", ["he</s>llo", "<|im_end|> so"])
def test_special_text_inside_an_answer_is_refused(answer):
    format = ChatFormat(make_tokenizer(CHATML))
    with pytest.raises(DataError, match="special token"):
        format.example("hi", answer)


def test_a1_end_token_inside_the_prompt_stays_attended_and_untrained():
    format = ChatFormat(make_tokenizer(pad_token=None))
    example = format.example("h</s>i", "hello")
    batch = pad_examples([example, sampled_example([1] * 4, [2] * 4)], format.pad_id)
    (end,) = ids_of(format, "</s>")
    assert batch.attention_mask_BT[0].tolist() == [True] * 5 + [False] * 3
    assert batch.token_ids_BT[0][batch.response_mask_BT[0]].tolist() == [*ids_of(format, "hello"), end]


def test_only_assistant_turns_are_trained(chatml):
    turns = (Message(A, "hello"), Message(U, "and?"), Message(A, "he"))
    example = chatml.example((Message(U, "hi"),), turns)
    assert live_text(chatml, example) == "hello<|im_end|>he<|im_end|>"
    whole = chatml.tokenizer.decode(list(example.token_ids))
    assert whole + "\n" == chatml.tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in (Message(U, "hi"), *turns)], tokenize=False
    )


def test_template_that_trims_is_followed():
    format = ChatFormat(make_tokenizer(BOS_TEMPLATE))
    assert format.example((Message(U, "q"),), " hello \n") == format.example((Message(U, "q"),), "hello")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}", "right after"),
        (
            "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            "no end token",
        ),
        ("{{ raise_exception('not today') }}", "refuses"),
        (CHATML.replace("m['content']", "m['content'].split('!')[0]"), "header [+] content [+] end"),
    ],
)
def test_templates_where_ids_would_differ_are_refused(template, message):
    format = ChatFormat(make_tokenizer(template))
    with pytest.raises(DataError, match=message):
        format.example((Message(U, "q"),), "hello!there")


def test_template_that_rewrites_history_is_refused():
    template = CHATML.replace("{% for m", "{{ messages | length }}{% for m")
    format = ChatFormat(make_tokenizer(template))
    turns = (Message(A, "hello"), Message(U, "and?"), Message(A, "he"))
    with pytest.raises(DataError, match=r"rewrites|header"):
        format.example((Message(U, "q"),), turns)


def test_wrong_shapes_of_answers_are_refused(chatml):
    with pytest.raises(DataError, match="begin and end with an assistant"):
        chatml.example((Message(U, "q"),), (Message(U, "x"),))
    with pytest.raises(DataError, match="begin and end with an assistant"):
        chatml.example((Message(U, "q"),), ())
    with pytest.raises(DataError, match="both of one kind"):
        chatml.example("q", (Message(A, "x"),))
    with pytest.raises(DataError, match="without messages"):
        chatml.prompt_ids(())
    with pytest.raises(DataError, match="prompt is empty"):
        chatml.prompt_ids("")


def test_example_checks_itself():
    with pytest.raises(DataError, match="one mask entry per token"):
        TokenizedExample((1, 2), (False,))
    with pytest.raises(DataError, match="first token"):
        sampled_example([], [1])


def test_fingerprint_changes_with_template_and_special_tokens():
    base = ChatFormat(make_tokenizer(CHATML)).fingerprint
    assert base == ChatFormat(make_tokenizer(CHATML)).fingerprint
    assert base != ChatFormat(make_tokenizer(CHATML + " ")).fingerprint
    assert base != ChatFormat(make_tokenizer(CHATML, eos_token="<|im_end|>")).fingerprint


def test_bulk_lists_every_bad_row(chatml):
    good = Demonstration((Message(U, "q"),), "hello")
    bad = Demonstration((Message(U, "q"),), "he<|im_end|>llo")
    assert len(demonstration_examples([good, good], chatml)) == 2
    with pytest.raises(DataError, match=r"(?s)d: 2 of 3 rows.*rows 2-3: ") as caught:
        demonstration_examples([good, bad, bad], chatml, source="d")
    assert "row 1:" not in str(caught.value)
    (pair,) = comparison_pairs([Comparison(good.prompt, "hello", "he", 0.5)], chatml)
    assert pair.margin == 0.5
    assert live_text(chatml, pair.rejected) == "he<|im_end|>"


SHARED = ChatFormat(make_tokenizer(CHATML, eos_token="<|im_end|>"))


@settings(max_examples=60, deadline=None)
@given(question=st.text(max_size=30), answer=st.text(min_size=1, max_size=30))
def test_any_text_survives_and_agrees_with_the_template(question, answer):
    format, prompt = SHARED, (Message(U, question),)
    example = format.example(prompt, answer)
    assert live_text(format, example) == answer + "<|im_end|>"
    rendered = format.tokenizer.apply_chat_template(
        [{"role": U, "content": question}, {"role": A, "content": answer}], tokenize=False
    )
    assert format.tokenizer.decode(list(example.token_ids)) + "\n" == rendered


@pytest.mark.slow
def test_smollm2_renders_trains_and_samples_by_one_rule():
    from transformers import AutoTokenizer

    folder = Path(os.environ.get("TETHER_CACHE", Path.home() / ".cache" / "tether")) / "smollm2"
    if not folder.is_dir():
        pytest.skip("run `tether fetch smollm2` first")
    format = ChatFormat(
        AutoTokenizer.from_pretrained(folder), generation_config=GenerationConfig.from_pretrained(folder)
    )
    assert ids_of(format, "<|im_end|>")[0] in format.eos_ids
    prompt = (Message(U, "What is 2 + 2?"),)
    ids = format.prompt_ids(prompt)
    assert "named SmolLM" in format.prompt_text(prompt)
    assert ids == format.tokenizer.apply_chat_template(
        [{"role": U, "content": prompt[0].content}], add_generation_prompt=True, return_dict=False
    )
    example = format.example(prompt, "It is 4.")
    assert list(example.token_ids[: len(ids)]) == ids
    assert live_text(format, example) == "It is 4.<|im_end|>"
