"""Which texts are one."""

from __future__ import annotations

import pytest

from tether.records.texts import one_form, prompt_key
from tether.rewards.seen import prompt_hashes, was_seen
from tether.types import Message

TURN = (Message("user", "Hi"),)
TALK = (Message("system", "Be kind."), Message("user", "Hi"))


def test_one_turn_of_the_role_is_its_string():
    assert one_form(TURN, "user") == one_form("Hi", "user") == "Hi"
    assert one_form(TURN, "assistant") == TURN
    assert one_form(TALK, "user") == TALK


def test_a_key_is_that_of_the_turns():
    assert prompt_key("Hi") == prompt_key(TURN) == repr(TURN)
    assert prompt_key("Hi") != prompt_key("Hi ")
    assert prompt_key(TALK) == repr(TALK)


@pytest.mark.parametrize("stored", ["Hi", TURN])
def test_a_prompt_is_known_in_either_form(stored):
    seen = frozenset(prompt_hashes([stored, TALK]).split())
    assert was_seen("Hi", seen)
    assert was_seen(TURN, seen)
    assert was_seen(TALK, seen)
    assert not was_seen("Ho", seen)
