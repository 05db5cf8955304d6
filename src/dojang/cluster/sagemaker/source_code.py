"""Stages the code of a job for upload: this dojang, its requirements and the user's modules, in one folder.

The container runs in that folder, so it uses the dojang that checked the job, not one of its image.
"""

import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from pathlib import Path

from packaging.requirements import Requirement

from dojang.build.preflight import requirements
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError

__all__ = ["REQUIREMENTS", "extras", "stage"]

REQUIREMENTS = "dojang-requirements.txt"
IGNORED = ("__pycache__", "*.pyc", ".*", "runs", "evals", "audits", "*.egg-info", "node_modules")
"""Files of a user's folder that are never uploaded; above all hidden files, which may hold secrets."""
_MAX_BYTES = 200 * 2**20


def stage(
    folder: Path, config: RunConfig, own: Path | None, requirements: Path | None, environment: Mapping[str, str]
) -> None:
    """Fills a folder with the code that a container needs; `environment` is the job's."""
    if own is not None:
        _copy_own(own, folder)
    with resources.as_file(resources.files("dojang")) as package:
        shutil.copytree(package, folder / "dojang", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    installed = _distribution()
    about = folder / f"dojang-{installed.version}.dist-info"
    about.mkdir()
    for name in ("METADATA", "entry_points.txt"):  # vLLM finds dojang's plugin by its entry points
        (about / name).write_text(installed.read_text(name) or "")
    lines = [*_needed(installed, extras(config, environment))]
    if requirements is not None:
        lines += requirements.read_text().splitlines()
    (folder / REQUIREMENTS).write_text("\n".join(lines) + "\n")


def extras(config: RunConfig, environment: Mapping[str, str]) -> list[str]:
    """Extras of dojang that a run needs in this environment."""
    mlflow = config.track.mlflow_settings(environment)
    wanted = {
        "ray": True,
        **{each.extra: True for each in requirements(config)},
        "mlflow": mlflow is not None,
        "sagemaker-mlflow": mlflow is not None and mlflow.on_sagemaker,
        "wandb": config.track.wandb is not None and config.track.wandb.mode != "disabled",
        "tensorboard": bool(config.track.tensorboard),
    }
    return [name for name, needed in wanted.items() if needed]


def _copy_own(own: Path, folder: Path) -> None:
    if (own / "dojang").exists():
        raise ConfigError(f"--source {own} contains a `dojang`, which is uploaded anyway; give another folder")
    shutil.copytree(own, folder, ignore=shutil.ignore_patterns(*IGNORED), dirs_exist_ok=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > _MAX_BYTES:
        raise ConfigError(
            f"--source {own} has {size / 1e6:,.0f} MB, but is for modules only; give data as --input NAME={own}/..."
        )


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("dojang")
    except metadata.PackageNotFoundError:
        raise ConfigError("launching a job needs an installed dojang: pip install 'dojang[sagemaker]'") from None


def _needed(installed: metadata.Distribution, wanted: list[str]) -> Iterator[str]:
    """Requirements of dojang with these extras, without their markers."""
    for text in installed.requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *wanted]):
            requirement.marker = None
            yield str(requirement)
