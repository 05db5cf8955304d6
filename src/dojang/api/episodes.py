"""Plays one episode of an environment from Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dojang.api.blocking import run_coroutine
from dojang.api.settings import check_whole, model_of
from dojang.config import recipe as recipes
from dojang.config.eval_config import GRADED_BY
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.types import Problem, Sample, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PlayedEpisode", "PlayedTurn", "play_episode"]

_TOOLS = "Tools: "
_CALLS = (
    "{% set written = namespace(messages=[]) %}"
    "{% for each in messages %}{% set said = namespace(text=each.content or '') %}"
    "{% for call in each.tool_calls or [] %}"
    "{% set said.text = said.text ~ '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>' %}{% endfor %}"
    "{% set written.messages = written.messages + [{'role': each.role, 'content': said.text}] %}{% endfor %}"
    "{% set messages = written.messages %}"
)
"""Has calls written as text of their messages."""
_NOTE = "the model's chat template has no tools, so they are written before it; training refuses such a model"


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn of an episode, as the model saw or wrote it."""

    role: str
    """prompt, assistant, or the role of the environment's message, such as user or tool."""
    text: str
    """Text with the special tokens of the chat template."""
    reward: float | None = None
    """Reward of a reply; None for other turns."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """An episode from its first prompt to its verdict."""

    problem: Problem
    turns: tuple[PlayedTurn, ...]
    verdict: Verdict
    """Outcome and reward of the whole episode."""
    note: str = ""
    """Difference from an episode in training, if any."""


def play_episode(
    environment: str | Mapping[str, Any],
    *,
    model: str | Path = "dojang-tiny",
    seed: int = 0,
    overrides: Sequence[str] = (),
    **sections: Any,
) -> PlayedEpisode:
    """Plays one episode and returns its conversation with rewards.

    `environment` is a name such as "calculator", or a workflow section: {"name": "custom", "make_with": ...}. `seed`
    selects the problem and the random numbers. `sections` are those of a recipe, such as data={"name": "gsm8k"}; each
    environment has a dataset to try it with. `overrides` are settings as on the command line.
    """
    check_whole("seed", seed, 0)
    config = _config(environment, str(model_of(model)), seed, overrides, sections)
    return run_coroutine(lambda: _play(config))


def _config(
    environment: str | Mapping[str, Any], model: str, seed: int, overrides: Sequence[str], sections: Mapping[str, Any]
) -> RunConfig:
    from dojang.environments.catalogue import shipped_environments, trial_data

    workflow = {"name": environment} if isinstance(environment, str) else dict(environment)
    known = [each.name for each in shipped_environments()]
    if (name := workflow.get("name")) not in known:
        raise ConfigError(f"environment={name!r} is not one of {', '.join(known)}")
    chosen = [each.partition("=")[2] for each in overrides if each.startswith("data.name=")]
    data = sections.get("data") or {"name": chosen[-1] if chosen else trial_data(str(name))}
    tree: dict[str, Any] = {
        "model": {"name": model},
        "data": data,
        "rollout": {"max_tokens": 128},
        "seed": seed,
        "workflow": workflow,
    }
    if data.get("name") in GRADED_BY:
        tree["task"] = dict(GRADED_BY[data["name"]])
    return recipes.resolve("dojang.play_episode", {**tree, **sections}, overrides)


async def _play(config: RunConfig) -> PlayedEpisode:
    from dojang.runs.training import import_build

    import_build()
    from dojang.evaluation.evaluator import Evaluator

    problems = config.data.load("train")
    problem = problems[config.seed % len(problems)]
    evaluator = Evaluator(config)
    try:
        _write_tools(config, evaluator.tokenizer)
        samples = await evaluator.play(config, problem)
        turns = [turn for sample in samples for turn in _turns(sample, evaluator.tokenizer)]
    finally:
        await evaluator.close()
    note = _NOTE if turns and turns[0].text.startswith(f"{_TOOLS}[{{") else ""
    return PlayedEpisode(problem, tuple(turns), samples[0].verdict, note)


def _write_tools(config: RunConfig, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Has a chat template without tools write them first, if there are any, so that any model can try an
    environment."""
    from dojang.environments.section import EnvironmentSection

    template = tokenizer.chat_template
    if isinstance(config.workflow, EnvironmentSection) and isinstance(template, str) and "tools" not in template:
        tokenizer.chat_template = f"{{% if tools %}}{_TOOLS}{{{{ tools | tojson }}}}\n{_CALLS}{{% endif %}}{template}"


def _turns(sample: Sample, tokenizer: "PreTrainedTokenizerBase") -> list[PlayedTurn]:
    """Turns of one token stream, decoded."""

    def text(start: int, end: int) -> str:
        return str(tokenizer.decode(sample.tokens[start:end].tolist()))

    first = sample.turns[0].start if sample.turns else len(sample.tokens)
    found = [PlayedTurn("prompt", text(0, first))]
    for turn in sample.turns:
        own = turn.role == "assistant"
        found.append(PlayedTurn(turn.role, text(turn.start, turn.end), turn.reward if own else None))
    return found
