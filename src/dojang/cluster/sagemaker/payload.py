"""Payload of a job: its recipe and overrides, as files in an input channel.

Hyper-parameters would not do: SageMaker's SDK passes them through a shell, and a single quote in one ends the job.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.section import flatten

__all__ = ["CHANNEL", "ROOT", "Payload", "load", "local_paths"]

ROOT = Path("/opt/ml")
"""SageMaker's base directory in a container."""
CHANNEL = "dojang"
FILE = "job.json"


@dataclass(frozen=True, slots=True)
class Payload:
    """A recipe, overrides, and the settings whose values are input channels."""

    recipe: str
    """Name of a shipped recipe, or a file."""
    overrides: tuple[str, ...] = ()
    channels: dict[str, str] = field(default_factory=dict)
    """Input channel of each of these settings."""

    def channel_overrides(self, root: Path) -> list[str]:
        """Overrides that set these settings to the channels' folders."""
        return [f"{setting}={root}/input/data/{channel}" for setting, channel in self.channels.items()]

    def write(self, folder: Path) -> None:
        """Writes the payload's files."""
        content = asdict(self)
        if self.recipe not in recipes.shipped():
            content["recipe"] = Path(self.recipe).name
            (folder / content["recipe"]).write_bytes(Path(self.recipe).read_bytes())
        (folder / FILE).write_text(json.dumps(content, indent=2))


def load(root: Path) -> Payload:
    """Reads the payload of the running job."""
    folder = root / "input" / "data" / CHANNEL
    try:
        content = json.loads((folder / FILE).read_text())
        recipe, overrides, channels = str(content["recipe"]), tuple(content["overrides"]), dict(content["channels"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot read {folder / FILE} ({error!r}); this command is for jobs of `dojang launch sagemaker`, which "
            "writes that file"
        ) from None
    return Payload(str(folder / recipe) if (folder / recipe).is_file() else recipe, overrides, channels)


def local_paths(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yields settings with paths on this machine, which a job's container does not have."""
    benchmarks = {name: {"data": each.data.model_dump()} for name, each in config.eval.benchmarks.items()}
    for key, value in flatten({"data": config.data.model_dump(), "eval": {"benchmarks": benchmarks}}):
        if isinstance(value, Path) and not value.is_relative_to(ROOT):
            yield key, str(value)
    named = {"model.name": config.model.name} | ({"tester.model": config.tester.model} if config.tester else {})
    if config.distillation is not None and config.distillation.local_model:
        named["distillation.teacher"] = config.distillation.local_model
    for key, name in named.items():
        if Path(name).is_dir() and not Path(name).is_relative_to(ROOT):
            yield key, name
