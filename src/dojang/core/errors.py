"""Everything dojang raises on purpose, and the exit code each one ends a command with.

    DojangError              1
    ├── ConfigError          2   a recipe, an override or a command line that cannot be run
    ├── DataError            3   a dataset that is missing or unreadable
    ├── ModelError           4   a model that cannot be found, fetched or loaded
    ├── RunDirError          5   a run directory that is locked, full, foreign or cannot be resumed
    ├── TrainingError        6   a loss that is not finite
    ├── HealthError          7   rewards that cannot teach
    ├── JudgeError           8   a judge that does not work: a program that got no verdict, a failed self-test
    └── ClusterError         9   machines that do not come, have no room, or are gone
        └── RanksLost       10   processes that trained together; the run may begin again at its last checkpoint
    Interrupted            130   Ctrl-C or SIGTERM; the run was saved

A message says what is wrong with which value, why, and what to do. An `Interrupted` run is no error,
but it must not look like a finished one either, so it has an exit code of its own.
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
    "RanksLost",
    "RunDirError",
    "TrainingError",
]


class DojangError(Exception):
    """A failure with a message meant for the person at the keyboard."""

    exit_code = 1


class ConfigError(DojangError):
    """What was asked for cannot be run."""

    exit_code = 2


class DataError(DojangError):
    """A dataset is missing or unreadable."""

    exit_code = 3


class ModelError(DojangError):
    """A model cannot be found, fetched or loaded."""

    exit_code = 4


class RunDirError(DojangError):
    """A run directory cannot be used."""

    exit_code = 5


class TrainingError(DojangError):
    """The numbers went wrong."""

    exit_code = 6


class HealthError(DojangError):
    """The rewards cannot teach."""

    exit_code = 7


class JudgeError(DojangError):
    """The judge, not the judged program, failed."""

    exit_code = 8


class ClusterError(DojangError):
    """Machines that a run needs do not come, have no room, or are gone."""

    exit_code = 9


class RanksLost(ClusterError):
    """A process that trained with others is gone, and they cannot go on without it."""

    exit_code = 10


class Interrupted(DojangError):
    """The run was stopped from outside, after saving."""

    exit_code = 130
