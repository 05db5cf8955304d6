"""The code of a job: this dojang, what it needs, and the user's own modules, in one folder that is uploaded.

The container works in that folder, so its dojang is the one that checked the job, whatever its image has installed.
"""

import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path

from packaging.requirements import Requirement

from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError

__all__ = ["REQUIREMENTS", "extras", "stage"]

REQUIREMENTS = "dojang-requirements.txt"
IGNORED = ("__pycache__", "*.pyc", ".*", "runs", "evals", "audits", "*.egg-info", "node_modules")
"""What is never uploaded of a user's folder; hidden files above all, which may hold secrets."""
_MUCH = 200 * 2**20


def stage(
    folder: Path, config: RunConfig, own: Path | None, requirements: Path | None, environment: Mapping[str, str]
) -> None:
    """Fill a folder with everything a container needs to run dojang; `environment` is the job's."""
    if own is not None:
        _copy_own(own, folder)
    with resources.as_file(resources.files("dojang")) as package:
        shutil.copytree(package, folder / "dojang", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    installed = _distribution()
    about = folder / f"dojang-{installed.version}.dist-info"
    about.mkdir()
    for name in ("METADATA", "entry_points.txt"):  # by the latter vLLM finds how weights reach it
        (about / name).write_text(installed.read_text(name) or "")
    lines = [*_needed(installed, extras(config, environment))]
    if requirements is not None:
        lines += requirements.read_text().splitlines()
    (folder / REQUIREMENTS).write_text("\n".join(lines) + "\n")


def extras(config: RunConfig, environment: Mapping[str, str]) -> list[str]:
    """Which of dojang's extras a run needs in this environment."""
    lora, mlflow = config.train.lora, config.track.mlflow_settings(environment)
    wanted = {
        "ray": True,
        "vllm": config.rollout.engine == "vllm",
        "maths": config.task.name == "maths",
        "reasoning-gym": config.data.name == "reasoning_gym",
        "lora": lora is not None,
        "qlora": (lora is not None and lora.base_bits == 4) or config.train.optimizer == "adamw8bit",
        "mlflow": mlflow is not None,
        "sagemaker-mlflow": mlflow is not None and mlflow.on_sagemaker,
        "tensorboard": bool(config.track.tensorboard),
    }
    return [name for name, needed in wanted.items() if needed]


def _copy_own(own: Path, folder: Path) -> None:
    if (own / "dojang").exists():
        raise ConfigError(f"--source {own} has a `dojang` of its own, which is uploaded anyway; give another folder")
    shutil.copytree(own, folder, ignore=shutil.ignore_patterns(*IGNORED), dirs_exist_ok=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > _MUCH:
        raise ConfigError(
            f"--source {own} has {size / 1e6:,.0f} MB; it is for modules. Give data as --input NAME={own}/..."
        )


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("dojang")
    except metadata.PackageNotFoundError:
        raise ConfigError(
            "dojang must be installed to be launched elsewhere: pip install 'dojang[sagemaker]'"
        ) from None


def _needed(installed: metadata.Distribution, wanted: list[str]) -> Iterator[str]:
    """Requirements of dojang with these extras, without the markers that say so."""
    for text in installed.requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *wanted]):
            requirement.marker = None
            yield str(requirement)
