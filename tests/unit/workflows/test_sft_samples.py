"""Completions as they are trained on: the chat template applied, the loss on the completion and its end alone."""

from collections.abc import Callable
from copy import deepcopy

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ConfigError, DataError, TooLong
from dojang.types import Message, Outcome, Problem
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.sft_samples import SftWorkflow

PROBLEM = Problem("rows/1", "rows", (Message("user", "what is 1+1?"),), None, columns={"said": "the answer is 2"})


def renderer(tokenizer: PreTrainedTokenizerBase, context: int = 512) -> ChatRenderer:
    return ChatRenderer(tokenizer, context=context, max_tokens=8)


def test_prompt_and_completion_meet_where_the_model_begins_to_write(tokenizer: PreTrainedTokenizerBase) -> None:
    sample = SftWorkflow(renderer(tokenizer), "said").sample(PROBLEM)
    first = int(sample.mask.argmax())
    assert tuple(sample.tokens[:first]) == renderer(tokenizer).render(PROBLEM.messages)
    assert all(sample.mask[first:])
    assert tokenizer.decode(list(sample.tokens[first:])) == "the answer is 2<|end|>"
    assert sample.verdict.outcome is Outcome.ACCEPTED
    assert sample.version == -1


def test_text_that_a_template_adds_after_eos_is_not_trained(tokenizer: PreTrainedTokenizerBase) -> None:
    chatty = deepcopy(tokenizer)
    chatty.chat_template = str(tokenizer.chat_template).replace("<|end|>", "<|end|>\n")
    _, tokens = renderer(chatty).render_completion(PROBLEM.messages, "two")
    assert chatty.decode(list(tokens)) == "two<|end|>"


def test_plain_text_prompts_end_with_the_end_token(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt, tokens = renderer(tokenizer).render_completion([Message("text", "1+1=")], "2")
    assert tokenizer.decode(list(prompt)) == "1+1="
    assert tokenizer.decode(list(tokens)) == "2<|end|>"


def test_templates_that_change_the_prompt_or_lose_the_completion_are_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    other = deepcopy(tokenizer)
    other.chat_template = "{% if add_generation_prompt %}A{% else %}B{% endif %}{{ messages[-1].content }}"
    with pytest.raises(ConfigError, match="writes another prompt"):
        renderer(other).render_completion(PROBLEM.messages, "two")
    other.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ConfigError, match="tokens of a completion"):
        renderer(other).render_completion(PROBLEM.messages, "two")


def test_rows_without_a_completion_or_room_are_refused(
    tokenizer: PreTrainedTokenizerBase, micro_model: Callable[..., PreTrainedModel]
) -> None:
    with pytest.raises(DataError, match=r"no completion in the column 'completion', but said"):
        SftWorkflow(renderer(tokenizer), "completion").sample(PROBLEM)
    with pytest.raises(TooLong, match="its completion of"):
        SftWorkflow(renderer(tokenizer, context=10), "said").sample(PROBLEM)
