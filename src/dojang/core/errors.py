"""Exceptions of dojang, each with its exit code.

    DojangError              1
    ├── ConfigError          2   invalid recipe, override or command line
    │   └── TooLong          2   a prompt without room for a completion
    ├── DataError            3   missing or unreadable dataset
    ├── ModelError           4   model not found, not downloaded or not loadable
    ├── RunDirError          5   run directory locked, full, not a run, or not resumable
    ├── TrainingError        6   loss not finite
    │   └── OutOfMemory      6   an update or an engine ran out of GPU memory
    ├── HealthError          7   rewards without a training signal
    ├── JudgeError           8   the judge failed: no verdict for a program, or a failed self-test
    └── ClusterError         9   hosts missing, without resources, or lost
        └── RanksLost       10   a trainer process was lost; the run may restart from its last checkpoint
    Interrupted            130   Ctrl-C or SIGTERM; the run was saved

A message names the wrong value, the reason and the remedy. `Interrupted` is no failure, but must not look like success
either, so it has its own exit code.
"""

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "DojangError",
    "HealthError",
    "Interrupted",
    "JudgeError",
    "ModelError",
    "OutOfMemory",
    "RanksLost",
    "RunDirError",
    "TooLong",
    "TrainingError",
]


class DojangError(Exception):
    """A failure with a message for the user."""

    exit_code = 1


class ConfigError(DojangError):
    """A recipe, an override or a command line is invalid."""

    exit_code = 2


class DataError(DojangError):
    """A dataset is missing or unreadable."""

    exit_code = 3


class ModelError(DojangError):
    """A model cannot be found, downloaded or loaded."""

    exit_code = 4


class RunDirError(DojangError):
    """A run directory cannot be used."""

    exit_code = 5


class TrainingError(DojangError):
    """An update failed: the loss is not finite, or memory ran out."""

    exit_code = 6


class OutOfMemory(TrainingError):
    """An update or an engine ran out of memory. A later attempt, or one on another GPU, may have enough."""


class HealthError(DojangError):
    """The rewards give no training signal."""

    exit_code = 7


class JudgeError(DojangError):
    """The judge itself failed, not the judged program."""

    exit_code = 8


class ClusterError(DojangError):
    """Hosts that a run needs are missing, lack resources, or are lost."""

    exit_code = 9


class RanksLost(ClusterError):
    """A trainer process is lost; the other ranks cannot continue without it."""

    exit_code = 10


class Interrupted(DojangError):
    """A signal stopped the run; a first one after it saved a checkpoint."""

    exit_code = 130


class TooLong(ConfigError):
    """The prompt leaves no room for a completion within the context length."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
