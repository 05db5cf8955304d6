"""dojang: reinforcement learning with verifiable rewards for language models.

    import dojang
    result = dojang.train(model="smollm2-135m-instruct", dataset=rows, reward_funcs=[my_reward], steps=60)
    result.metrics, result.rollouts, result.best_model, result.plot()

Importing the package loads nothing heavy: each function imports its parts when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dojang.api.episodes import PlayedEpisode, play_episode
    from dojang.api.evaluating import evaluate
    from dojang.api.judging import grade, judge_program
    from dojang.api.result import RunResult
    from dojang.api.sampling import sample
    from dojang.api.session import Session
    from dojang.api.training import resume, train
    from dojang.config.run_config import RunConfig
    from dojang.core.errors import DojangError
    from dojang.environments.base import Environment, Reply, Step
    from dojang.environments.calls import EnvironmentFailed
    from dojang.environments.tools import ToolEnvironment
    from dojang.evaluation.evaluate_model import EvalResult
    from dojang.programs import Judgement
    from dojang.types import Completion, Group, Message, Outcome, Problem, Sample, Verdict

__all__ = [
    "Completion",
    "DojangError",
    "Environment",
    "EnvironmentFailed",
    "EvalResult",
    "Group",
    "Judgement",
    "Message",
    "Outcome",
    "PlayedEpisode",
    "Problem",
    "Reply",
    "RunConfig",
    "RunResult",
    "Sample",
    "Session",
    "Step",
    "ToolEnvironment",
    "Verdict",
    "__version__",
    "evaluate",
    "grade",
    "judge_program",
    "play_episode",
    "resume",
    "sample",
    "train",
]

__version__ = "0.1.0"

_MODULES = {
    "dojang.api.episodes": ("PlayedEpisode", "play_episode"),
    "dojang.api.evaluating": ("evaluate",),
    "dojang.api.judging": ("grade", "judge_program"),
    "dojang.api.result": ("RunResult",),
    "dojang.api.sampling": ("sample",),
    "dojang.api.session": ("Session",),
    "dojang.api.training": ("resume", "train"),
    "dojang.config.run_config": ("RunConfig",),
    "dojang.core.errors": ("DojangError",),
    "dojang.environments.base": ("Environment", "Reply", "Step"),
    "dojang.environments.calls": ("EnvironmentFailed",),
    "dojang.environments.tools": ("ToolEnvironment",),
    "dojang.evaluation.evaluate_model": ("EvalResult",),
    "dojang.programs": ("Judgement",),
    "dojang.types": ("Completion", "Group", "Message", "Outcome", "Problem", "Sample", "Verdict"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dojang' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
