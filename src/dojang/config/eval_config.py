"""Settings of evaluations: the held-out split and further benchmarks; the unions of datasets and tasks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from dojang.core.section import Section
from dojang.data.agent_tasks import AgentTasksConfig
from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.custom import CustomDataConfig
from dojang.data.episodes import EpisodesConfig
from dojang.data.files import FilesConfig
from dojang.data.gsm8k import Gsm8kConfig
from dojang.data.prepared import PreparedConfig
from dojang.data.prompt_completion import PromptCompletionConfig
from dojang.data.reasoning_gym import ReasoningGymConfig
from dojang.data.tiny_functions import FunctionsConfig
from dojang.data.tiny_programs import TinyProgramsConfig
from dojang.data.verifiers import VerifiersDataConfig
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.code import CodeConfig
from dojang.tasks.custom import CustomTaskConfig
from dojang.tasks.environment import EnvironmentTaskConfig
from dojang.tasks.exact_match import ExactMatchConfig
from dojang.tasks.keywords import KeywordsConfig
from dojang.tasks.maths import MathsConfig
from dojang.tasks.reasoning_gym import ReasoningGymTaskConfig
from dojang.tasks.reward_functions import RewardFunctionsConfig

__all__ = ["GRADED_BY", "BenchmarkConfig", "Data", "EvalConfig", "SamplingConfig", "Task", "disagreements"]

Data = Annotated[
    AgentTasksConfig
    | ArithmeticConfig
    | EpisodesConfig
    | FilesConfig
    | FunctionsConfig
    | Gsm8kConfig
    | PreparedConfig
    | PromptCompletionConfig
    | ReasoningGymConfig
    | TinyProgramsConfig
    | VerifiersDataConfig
    | CustomDataConfig,
    Field(discriminator="name"),
]
Task = Annotated[
    AnswerLineConfig
    | CodeConfig
    | EnvironmentTaskConfig
    | ExactMatchConfig
    | KeywordsConfig
    | MathsConfig
    | ReasoningGymTaskConfig
    | RewardFunctionsConfig
    | CustomTaskConfig,
    Field(discriminator="name"),
]
GRADED_BY: Mapping[str, Mapping[str, str]] = {
    "agent_tasks": {"name": "environment"},
    "arithmetic": {"name": "answer_line"},
    "episodes": {"name": "environment"},
    "gsm8k": {"name": "answer_line"},
    "functions": {"name": "code", "language": "python3"},
    "tiny_programs": {"name": "code", "language": "python3"},
    "prompt_completion": {"name": "exact_match"},
    "reasoning_gym": {"name": "reasoning_gym"},
    "verifiers": {"name": "environment"},
}
"""Task that grades a dataset, if that follows from its name."""


def disagreements(data: Data, task: Task, prefix: str = "") -> Iterator[str]:
    """Errors if the task cannot grade the data; `prefix` is the section of both."""
    if data.name == "prompt_completion" and task.name == "answer_line":
        yield (
            f"{prefix}data.name=prompt_completion has whole completions as references; set "
            f"{prefix}task.name=exact_match"
        )
    if data.name in ("functions", "tiny_programs") and task.name == "answer_line":
        yield (
            f"{prefix}data.name={data.name} asks for programs, which only running them can grade; set "
            f"{prefix}task.name=code"
        )
    if data.name == "reasoning_gym" and task.name not in ("reasoning_gym", "custom"):
        yield (
            f"{prefix}data.name=reasoning_gym has puzzles that only it can grade; set {prefix}task.name=reasoning_gym"
        )
    if task.name == "reasoning_gym" and data.name not in ("reasoning_gym", "custom"):
        yield (f"{prefix}task.name=reasoning_gym grades its own puzzles, not those of {prefix}data.name={data.name}")


class SamplingConfig(Section):
    """Sampling of held-out problems."""

    samples: int = Field(default=1, ge=1)
    """Number of samples per problem; the score is the fraction that is right."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p (nucleus) sampling: sample from the smallest set of tokens with this total probability; 1 disables it."""
    top_k: int = Field(default=0, ge=0)
    """Top-k sampling: sample from this number of the most likely tokens; 0 disables it."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling: sample from tokens with at least this fraction of the highest probability; 0 disables it."""

    def sampling_disagreements(self, prefix: str = "") -> Iterator[str]:
        """Errors if greedy decoding makes other settings meaningless; `prefix` is their section."""
        if self.temperature > 0:
            return
        if self.samples > 1:
            yield (
                f"{prefix}samples={self.samples} greedy answers would all be the same; set {prefix}temperature above 0 "
                f"or {prefix}samples=1"
            )
        for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if (value := getattr(self, key)) != off:
                yield (
                    f"{prefix}{key}={value:g} has no effect on greedy answers; set {prefix}temperature above 0 or "
                    f"leave {prefix}{key} out"
                )


class BenchmarkConfig(SamplingConfig):
    """A further evaluation set."""

    data: Data
    """Dataset whose test split is evaluated, with the same settings as `data`."""
    task: Task | None = None
    """Task that grades it, with the same settings as `task`; by default the one that fits the dataset. Programs run on
    all tests unless task.max_tests is set here."""
    every: int = Field(default=25, ge=1)
    """Steps between evaluations on this benchmark; also before the first step and after the last."""
    problems: int | None = Field(default=None, ge=1)
    """Number of problems: the first ones of the test split; by default all."""

    @model_validator(mode="before")
    @classmethod
    def _all_tests(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and isinstance(task := tree.get("task"), dict) and task.get("name") == "code":
            return {**tree, "task": {"max_tests": None, **task}}
        return tree

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        wrong = [] if self.task is None else list(disagreements(self.data, self.task))
        if self.task is None and self.data.name not in (*GRADED_BY, "prepared"):
            wrong.append(f"task must be given: no task is known for data.name={self.data.name}")
        wrong += self.sampling_disagreements()
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class EvalConfig(SamplingConfig):
    """Evaluation of the policy on the held-out split."""

    every: int = Field(default=10, ge=1)
    """Steps between evaluations; always one before the first step and one after the last."""
    problems: int = Field(default=256, ge=1)
    """Number of held-out problems per evaluation: the first ones of the split."""
    num_completions_to_print: int = Field(default=2, ge=0)
    """Number of completions printed at every evaluation on the held-out split: the ends of accepted ones and of others,
    in turn; one line each where the output is no terminal. 0 prints none."""
    benchmarks: dict[Name, BenchmarkConfig] = Field(default_factory=dict)
    """Further evaluation sets by name, such as {humaneval: {data: {name: prepared, path: data/humaneval}, every: 25}}.
    Each logs val/accuracy/NAME and val/test_score/NAME, and does not count into val/accuracy."""
