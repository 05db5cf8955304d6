"""Settings of a rollout worker: those of its run, with those of its machine. Loads no torch: a mistake is reported at
once."""

from collections.abc import Sequence
from copy import deepcopy

from dojang import __version__
from dojang.cluster.runtime_config import LocalConfig
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.rollout_service.messages import RunDescription
from dojang.track.config import TrackConfig

__all__ = ["check_overrides", "worker_config"]

OWN_SETTINGS = ("data.path", "model.name", "model.device", "tester.model", "rollout.engine.*", "judge.*")
"""Settings that may differ on the machine of a worker: paths, devices and sizes."""


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises ConfigError for a setting that a worker may not change."""
    for each in overrides:
        key = each.partition("=")[0]
        sections = [name.removesuffix("*") for name in OWN_SETTINGS if name.endswith("*")]
        if key not in OWN_SETTINGS and not f"{key}.".startswith(tuple(sections)):
            raise ConfigError(
                f"{each}: a worker has the settings of its run; it may change only {', '.join(OWN_SETTINGS)}"
            )


def worker_config(description: RunDescription, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the settings of the run, with those of this machine, and without those that only the trainer uses."""
    if description.dojang != __version__:
        raise ConfigError(
            f"the run has dojang {description.dojang}, this machine {__version__}; install {description.dojang} here"
        )
    check_overrides(overrides)
    config = recipes.resolve("the run", deepcopy(dict(description.config)), overrides)
    unused = {
        "track": TrackConfig(),
        "distillation": None,
        "runtime": LocalConfig(),
        "eval": config.eval.model_copy(update={"benchmarks": {}}),
    }
    return config.model_copy(update=unused)
