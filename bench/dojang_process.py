"""Runs dojang's commands in their own processes, as a user does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"


def environment() -> dict[str, str]:
    """Environment variables with which Python finds dojang's source."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))}


def dojang(log: Path, *arguments: str) -> None:
    """Runs `dojang ARGUMENTS` with its output in `log`. Exits with the end of it if the command fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [sys.executable, "-m", "dojang", *arguments]
        ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment(), check=False)
    if ended.returncode:
        shown = " ".join(arguments)
        raise SystemExit(f"dojang {shown} ended with {ended.returncode}:\n{log.read_text()[-3000:]}")


def keep_command(path: Path, command: list[str], *results: Path) -> None:
    """Writes the command that makes the results to `path`. Exits if some are there and another command made them: they
    are not made again, and would be reported as those of this command."""
    known = json.loads(path.read_text()) if path.exists() else []
    if known != command and (found := next((each for each in results if each.exists()), None)):
        made = repr(" ".join(known)) if known else "an unknown command"
        raise SystemExit(f"{found} has results of {made}, not of {' '.join(command)!r}; choose another directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(command) + "\n")


def keep_training(recipe: str, directory: Path, *settings: str) -> None:
    """Exits if the run in `directory` has another recipe or other settings; `train` checks this itself."""
    keep_command(_beside(directory, "json"), [recipe, *settings], directory)


def train(recipe: str, directory: Path, *settings: str) -> dict[str, Any]:
    """Trains, and returns the run's summary. A finished run is not repeated, one that broke off goes on."""
    keep_training(recipe, directory, *settings)
    summary = directory / "summary.json"
    if not summary.exists() or json.loads(summary.read_text())["status"] != "finished":
        resume = ["--resume"] if directory.is_dir() else []
        dojang(_beside(directory, "log"), "train", recipe, *settings, "--run-dir", str(directory), *resume)
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def _beside(directory: Path, suffix: str) -> Path:
    return directory.with_name(f"{directory.name}.{suffix}")  # not with_suffix: names may have a dot, as in keep-12.5


def curve(directory: Path, name: str) -> dict[int, float]:
    """A metric by step."""
    rows = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return {int(row["step"]): row[name] for row in rows if name in row}
