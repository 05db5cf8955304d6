"""Provides dojang's rewards to other trainers: as a TRL reward function, and as a veRL `compute_score`.

    trainer = GRPOTrainer(reward_funcs=as_trl_reward("maths", reference="solution"), ...)
    custom_reward_function:
        {path: pkg://dojang.integrations.reward_functions, name: compute_score, reward_kwargs: {task: maths}}

A task is a name, a section as in a recipe ({"name": "maths", "boxed": 0.1}), or an object with the methods of
dojang.protocols.Task. Its processes start with the first completion, serve all later ones, and end with the program or
with `close()`. A forked process starts its own.

Completions that cannot be judged are retried, as in a dojang run. If a completion still has no verdict, TRL gets None,
and drops it from the group; veRL has no such value, so it gets an error: it would train on a 0.

veRL loads this file by its path; it does not need torch. Not covered: reward models.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from statistics import fmean
from typing import Any

from dojang.build.grader import Described, Grader
from dojang.core.errors import ConfigError, DataError, JudgeError
from dojang.data.rows import reference_in
from dojang.judge.config import JudgeConfig
from dojang.types import Message, Outcome, Problem, Verdict

__all__ = ["TrlReward", "VerlReward", "as_trl_reward", "as_verl_reward", "compute_score"]

_MAKING = threading.Lock()
_TRL_ONLY = {"completion_ids", "prompt_ids"}
"""Lists that TRL passes in addition to the dataset's columns."""


def as_trl_reward(
    task: Described, *, reference: str = "", name: str = "", judge: Mapping[str, Any] | JudgeConfig | None = None
) -> "TrlReward":
    """Returns a function for TRL's `reward_funcs`.

    `reference` is the dataset column with the reference answers; empty: the columns that `dojang data prepare` writes.
    `name` is the name in TRL's metrics. `judge` is the judge section of a recipe.
    """
    grader = Grader(task, judge)
    return TrlReward(grader, reference, name or grader.name)


def as_verl_reward(task: Described, *, judge: Mapping[str, Any] | JudgeConfig | None = None) -> "VerlReward":
    """Returns a function with the signature of veRL's `compute_score`."""
    return VerlReward(Grader(task, judge))


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    task: str | Mapping[str, Any] = "",
    judge: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, float]:
    """Computes veRL's score; `task` and `judge` come from custom_reward_function.reward_kwargs."""
    if not task:
        raise ConfigError(
            "no task given; set custom_reward_function.reward_kwargs.task to a name (answer_line, maths, code, "
            "keywords) or to a mapping, as the task section of a recipe"
        )
    with _MAKING:  # veRL calls from many threads, which share the processes
        score = _verl(json.dumps(_plain(task)), json.dumps(_plain(judge)))
    return score(data_source, solution_str, ground_truth, extra_info)


class TrlReward:
    """Grades completions with TRL's signature of reward functions."""

    def __init__(self, grader: Grader, reference: str, name: str) -> None:
        self.__name__ = name
        self._grader, self._reference = grader, reference

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any
    ) -> list[float | None]:
        """Returns a reward for each completion; None for one that could not be judged."""
        given = prompts if prompts is not None else [""] * len(completions)
        rows = self._rows(columns, len(completions))
        problems = [self._problem(prompt, row) for prompt, row in zip(given, rows, strict=True)]
        verdicts = self._grader.verdicts(list(zip(problems, map(_text, completions), strict=True)))
        self._report(verdicts, columns.get("log_metric"))
        return [verdict.reward for verdict in verdicts]

    def close(self) -> None:
        """Ends the grading processes. A later call starts new ones."""
        self._grader.close()

    def _rows(self, columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        """Returns the relevant columns as one row per completion."""
        wanted = self._reference or "reward_model"
        if wanted not in columns:
            raise ConfigError(
                f"{self.__name__}: the dataset has no column {wanted!r}; name the column with the answers, as in "
                f"as_trl_reward(..., reference='solution'). Columns: {', '.join(sorted(columns)) or 'none'}"
            )
        lists = {key for key, value in columns.items() if isinstance(value, list) and len(value) == count}
        kept = [key for key in columns if key in lists - _TRL_ONLY or key in (wanted, "data_source", "extra_info")]
        return [{key: columns[key][place] for key in kept} for place in range(count)]

    def _problem(self, prompt: Any, row: Mapping[str, Any]) -> Problem:
        truth = row[self._reference] if self._reference else row["reward_model"]["ground_truth"]
        columns = {key: value for key, value in row.items() if key != "reward_model"}
        source = row.get("data_source") or self.__name__
        return _problem(_messages(prompt), truth, source, row.get("extra_info"), columns)

    def _report(self, verdicts: Sequence[Verdict], log_metric: Any) -> None:
        """Logs to TRL's metrics: the share of accepted completions, and the parts of the reward."""
        judged = [verdict for verdict in verdicts if verdict.reward is not None]
        if len(judged) < len(verdicts):
            first = next(verdict for verdict in verdicts if verdict.reward is None)
            logging.getLogger(__name__).warning(
                "%s: %d of %d completions could not be judged: %s",
                self.__name__,
                len(verdicts) - len(judged),
                len(verdicts),
                first.detail,
            )
        if log_metric is None or not judged:
            return
        log_metric(f"{self.__name__}/accuracy", fmean(verdict.outcome is Outcome.ACCEPTED for verdict in judged))
        for part in sorted({part for verdict in judged for part in verdict.parts}):
            having = [verdict.parts[part] for verdict in judged if part in verdict.parts]
            log_metric(f"{self.__name__}/{part}", fmean(having))


class VerlReward:
    """Grades completions with the signature of veRL's `compute_score`."""

    __name__ = "compute_score"

    def __init__(self, grader: Grader) -> None:
        self._grader = grader

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
    ) -> dict[str, float]:
        """Returns the reward as `score`, and whether it was accepted as `acc`. Raises JudgeError without a verdict."""
        problem = _problem((), ground_truth, data_source, extra_info)
        (verdict,) = self._grader.verdicts([(problem, solution_str)])
        if verdict.reward is None:
            raise JudgeError(f"a completion could not be judged: {verdict.detail}")
        return {"score": verdict.reward, "acc": float(verdict.outcome is Outcome.ACCEPTED)}

    def close(self) -> None:
        """Ends the grading processes. A later call starts new ones."""
        self._grader.close()


@cache
def _verl(task: str, judge: str) -> VerlReward:
    """Returns one instance, with its processes, for each combination of settings."""
    return as_verl_reward(json.loads(task), judge=json.loads(judge))


def _problem(
    messages: tuple[Message, ...], truth: Any, source: str, info: Any, columns: Mapping[str, Any] | None = None
) -> Problem:
    known = info if isinstance(info, Mapping) else {}
    plain = truth if isinstance(truth, str) else _plain(truth)
    try:
        # Text and CodeFu's tests are parsed; anything else goes to the task as it is.
        foreign = isinstance(plain, str) or (isinstance(plain, dict) and "private_tests" in plain)
        reference = reference_in(plain) if foreign else plain
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a ground truth of {source} cannot be read ({type(error).__name__}: {error})") from error
    # The id determines which tests are drawn, so it must be the same for all completions of a problem.
    name = known.get("id") or sha256(repr((messages, plain)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    own = {"extra_info": info, **(columns or {})}
    return Problem(str(name), str(source), messages, reference, str(known.get("tier") or ""), own)


def _messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    return tuple(Message(each["role"], _words(each.get("content"))) for each in prompt)


def _text(completion: Any) -> str:
    """Returns the text of a completion; of a conversation, the last assistant turn."""
    if isinstance(completion, str):
        return completion
    said = [_words(turn.get("content")) for turn in completion if turn.get("role") == "assistant"]
    return said[-1] if said else ""


def _words(content: Any) -> str:
    """Joins the text parts of a turn."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(piece.get("text") or "") for piece in content)


def _plain(value: Any) -> Any:
    """Converts containers of NumPy and OmegaConf to plain Python."""

    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value
