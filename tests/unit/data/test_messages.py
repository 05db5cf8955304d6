"""Prompts as text or messages."""

import pytest

from dojang.data.messages import to_messages, with_system
from dojang.types import Message

USER = Message("user", "1 + 1?")


@pytest.mark.parametrize(
    "value",
    [
        "1 + 1?",
        [{"role": "user", "content": "1 + 1?"}],
        ({"role": "user", "content": "1 + 1?", "name": None},),
        [{"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]}],
    ],
)
def test_text_and_messages(value: object) -> None:
    assert to_messages(value) == (USER,)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "'3' is neither text nor a list of messages"),
        (None, "neither text nor a list"),
        (["text"], "a message needs a role .*not text"),
        ([{"role": "tool", "content": "x"}], "a message needs a role"),
        ([{"role": "user", "content": None}], "text as content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "text as content"),
    ],
)
def test_anything_else_is_refused(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_messages(value)


def test_system_prompt_is_never_doubled() -> None:
    own = (Message("system", "Be long."), USER)
    assert with_system("Be brief.", (USER,)) == (Message("system", "Be brief."), USER)
    assert with_system("Be brief.", own) == own
    assert with_system("", (USER,)) == (USER,)
