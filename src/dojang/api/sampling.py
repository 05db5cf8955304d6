"""Samples completions from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dojang.api.blocking import run_coroutine
from dojang.api.settings import check_whole, make_config, model_of
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.data.messages import to_messages
from dojang.types import Completion, Message, Sampling

__all__ = ["sample"]

Prompt = str | Sequence[Mapping[str, str] | Message]
"""A question, or the messages of a conversation: [{"role": "user", "content": ...}]."""


def sample(
    model: str | Path,
    prompts: Prompt | Sequence[Prompt],
    n: int = 1,
    *,
    max_tokens: int = 256,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    stop: str | Sequence[str] = (),
    **sections: Any,
) -> list[list[Completion]]:
    """Samples n completions of every prompt, and returns them in the order of the prompts.

    A prompt goes through the model's chat template. A completion has text, tokens, log-probs and its finish reason.
    The same seed gives the same completions. `sections` are those of a recipe, such as model={"device": "cpu"} or
    rollout={...} for another engine.
    """
    conversations = [_messages(each) for each in _listed(prompts)]
    check_whole("n", n)
    check_whole("seed", seed, 0)
    config = make_config(
        None,
        model={"name": str(model_of(model)), **sections.pop("model", {})},
        dataset={"name": "arithmetic"},  # a configuration needs one; it is not read
        caller="dojang.sample",
        rollout={"max_tokens": max_tokens, **sections.pop("rollout", {})},
        **sections,
    )
    try:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        sampling = Sampling(temperature, max_tokens, seed, 0, stops, (), top_k, top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return run_coroutine(lambda: _sample(config, conversations, n, sampling))


async def _sample(
    config: RunConfig, conversations: Sequence[Sequence[Message]], n: int, sampling: Sampling
) -> list[list[Completion]]:
    from dojang.runs.training import import_build

    import_build()
    from dojang.evaluation.evaluator import Evaluator

    evaluator = Evaluator(config)
    try:
        return await evaluator.sample(config, conversations, n, sampling)
    finally:
        await evaluator.close()


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ConfigError(f"prompts={prompts!r:.80} is neither text nor a list of prompts")
    listed: list[Any] = list(prompts)
    if listed and isinstance(listed[0], Mapping | Message):  # one conversation
        return [listed]
    return listed


def _messages(prompt: Any) -> tuple[Message, ...]:
    try:
        listed = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        found = tuple(each if isinstance(each, Message) else to_messages([each])[0] for each in listed)
        for each in found:
            each.content.encode()  # raises for an unpaired surrogate, which no tokenizer accepts
        return found
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{prompt!r:.80} is neither text nor a list of messages {{role, content}} ({type(error).__name__}: {error})"
        ) from None
