"""What a job is told of its recipe: files in a channel of its own, written where it is launched, read where it runs.

Not hyper-parameters: SageMaker's SDK lets a shell read those, and a single quote in one ends the job.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.section import flatten

__all__ = ["CHANNEL", "ROOT", "Shipment", "load", "strays"]

ROOT = Path("/opt/ml")
"""Where SageMaker has everything in a container."""
CHANNEL = "dojang"
FILE = "job.json"


@dataclass(frozen=True, slots=True)
class Shipment:
    """A recipe, overrides, and the settings whose values are folders that come with the job."""

    recipe: str
    """A shipped recipe's name, or a file."""
    overrides: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)
    """The channel each of these settings is told of."""

    def placed(self, root: Path) -> list[str]:
        """Overrides that say where the channels are."""
        return [f"{setting}={root}/input/data/{channel}" for setting, channel in self.places.items()]

    def write(self, folder: Path) -> None:
        """The files of the channel."""
        told = asdict(self)
        if self.recipe not in recipes.shipped():
            told["recipe"] = Path(self.recipe).name
            (folder / told["recipe"]).write_bytes(Path(self.recipe).read_bytes())
        (folder / FILE).write_text(json.dumps(told, indent=2))


def load(root: Path) -> Shipment:
    """What came with the job."""
    folder = root / "input" / "data" / CHANNEL
    try:
        told = json.loads((folder / FILE).read_text())
        recipe, overrides, places = str(told["recipe"]), tuple(told["overrides"]), dict(told["places"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / FILE} cannot be read ({error!r}); `dojang launch sagemaker` writes it, and this command is for "
            "jobs that were launched so"
        ) from None
    return Shipment(str(folder / recipe) if (folder / recipe).is_file() else recipe, overrides, places)


def strays(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Settings that lead to files outside of what a job has in its container."""
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
