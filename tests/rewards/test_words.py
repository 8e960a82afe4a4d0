from tether.rewards.words import content_words, count_words, repeated_share, split_words, stem


def test_words_keep_inner_apostrophes_and_drop_marks():
    assert split_words("Don't panic -- it's a well-known_trick!") == [
        "don't",
        "panic",
        "it's",
        "a",
        "well-known",
        "trick",
    ]


def test_text_without_spaces_is_not_short():
    assert count_words(["x" * 200]) == 10
    assert count_words(["egg", "x" * 20]) == 2


def test_forms_of_one_word_share_a_stem():
    assert len({stem(w) for w in ("boil", "boils", "boiled", "boiling")}) == 1
    assert len({stem(w) for w in ("chop", "chopped", "chopping")}) == 1
    assert len({stem(w) for w in ("berry", "berries")}) == 1
    assert stem("bus") == "bus"


def test_content_words_of_a_question():
    assert content_words(split_words("What is the best way to boil an egg?")) == {"boil", "egg"}


def test_repeated_share():
    assert repeated_share(["a", "b", "a", "b", "a", "b"]) == 0.5
    assert repeated_share(["a", "b"]) == 0
