import copy
from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.types import Message
from dojang.workflows.chat_renderer import ChatRenderer

CHAT = (Message("system", "be brief"), Message("user", "what is 1+1?"))


@pytest.fixture
def base_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer without a chat template, as base models have."""
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    return plain


def test_a_chat_model_gets_its_template(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = ChatRenderer(tokenizer, context=512, max_tokens=10).render(CHAT)
    assert tokenizer.decode(tokens) == "<|system|>be brief<|end|><|user|>what is 1+1?<|end|><|assistant|>"


def test_special_tokens_of_the_template_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = ChatRenderer(tokenizer, context=512, max_tokens=10).render(CHAT)
    assert tokens[0] == tokenizer.convert_tokens_to_ids("<|system|>")
    assert tokens[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert tokens.count(tokenizer.eos_token_id) == 2


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{% for each in messages %}", "Unexpected end of template"),
        ("{{ messages[7].content.x }}", "no element 7"),
    ],
)
def test_a_template_that_fails_is_named(tokenizer: PreTrainedTokenizerBase, template: str, words: str) -> None:
    broken = copy.deepcopy(tokenizer)
    broken.chat_template = template
    with pytest.raises(ConfigError, match=f"cannot render a conversation of system, user: .*{words}"):
        ChatRenderer(broken, context=512, max_tokens=10).render(CHAT)


def test_a_base_model_gets_plain_text(base_tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = ChatRenderer(base_tokenizer, context=512, max_tokens=10).render(CHAT)
    assert base_tokenizer.decode(tokens) == "be brief\n\nwhat is 1+1?\n\n"


@pytest.mark.parametrize("pick", ["tokenizer", "base_tokenizer"])
def test_a_plain_text_prompt_is_sent_without_a_template(pick: str, request: pytest.FixtureRequest) -> None:
    chosen: PreTrainedTokenizerBase = request.getfixturevalue(pick)
    pieces = (Message("text", "Question: 1+1?\nSolution: 2\n\n"), Message("text", "Question: 2+2?\nSolution:"))
    tokens = ChatRenderer(chosen, context=512, max_tokens=10).render(pieces)
    assert tokens == tuple(chosen.encode("Question: 1+1?\nSolution: 2\n\nQuestion: 2+2?\nSolution:"))


def test_text_and_turns_do_not_mix(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="cannot be mixed with the turns of a conversation"):
        ChatRenderer(tokenizer, context=512, max_tokens=10).render((*CHAT, Message("text", "Solution:")))


def test_rendering_is_a_tuple_of_ints_and_repeats(tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer(tokenizer, context=512, max_tokens=10)
    tokens = renderer.render(CHAT)
    assert isinstance(tokens, tuple)
    assert all(type(token) is int for token in tokens)
    assert renderer.render(CHAT) == tokens


@pytest.mark.parametrize("pick", ["tokenizer", "base_tokenizer"])
def test_a_prompt_must_leave_room_for_the_answer(pick: str, request: pytest.FixtureRequest) -> None:
    chosen: PreTrainedTokenizerBase = request.getfixturevalue(pick)
    make: Callable[..., ChatRenderer] = ChatRenderer
    length = len(make(chosen, context=512, max_tokens=10).render(CHAT))
    assert len(make(chosen, context=length + 10, max_tokens=10).render(CHAT)) == length
    with pytest.raises(ConfigError) as caught:
        make(chosen, context=length + 9, max_tokens=10).render(CHAT)
    message = str(caught.value)
    assert f"a prompt of {length} tokens and rollout.max_tokens=10" in message
    assert f"context of {length + 9} tokens" in message
    assert "lower rollout.max_tokens or use a shorter prompt" in message


def test_a_template_that_refuses_a_system_turn_gets_it_with_the_question(tokenizer: PreTrainedTokenizerBase) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = (
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}"
        "{% endif %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}<|assistant|>"
    )
    tokens = ChatRenderer(strict, context=512, max_tokens=10).render(CHAT)
    assert strict.decode(tokens) == "<|user|>be brief\n\nwhat is 1+1?<|end|><|assistant|>"


def test_a_model_without_a_limit_takes_any_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    long = (Message("user", "what is 1+1? " * 500),)
    assert len(ChatRenderer(tokenizer, context=None, max_tokens=10).render(long)) > 512


def test_a_template_gets_its_variables(tokenizer: PreTrainedTokenizerBase) -> None:
    thinking = copy.deepcopy(tokenizer)
    thinking.chat_template = "{{ messages[0].content }}{% if think is defined and not think %} at once{% endif %}"
    plain = ChatRenderer(thinking, context=None, max_tokens=1).render(CHAT[:1])
    told = ChatRenderer(thinking, context=None, max_tokens=1, variables={"think": False}).render(CHAT[:1])
    assert thinking.decode(told) == f"{thinking.decode(plain)} at once"


def test_how_a_template_is_filled_in_is_no_variable_of_it(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match="add_generation_prompt, tokenize is no variable of a chat template"):
        ChatRenderer(
            tokenizer, context=None, max_tokens=1, variables={"tokenize": True, "add_generation_prompt": 0, "think": 1}
        )
