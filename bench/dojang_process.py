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


def train(recipe: str, directory: Path, *settings: str) -> dict[str, Any]:
    """Trains, and returns the run's summary. A finished run is not repeated, one that broke off goes on."""
    summary = directory / "summary.json"
    if not summary.exists() or json.loads(summary.read_text())["status"] != "finished":
        resume = ["--resume"] if directory.is_dir() else []
        dojang(directory.with_suffix(".log"), "train", recipe, *settings, "--run-dir", str(directory), *resume)
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def curve(directory: Path, name: str) -> dict[int, float]:
    """A metric by step."""
    rows = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return {int(row["step"]): row[name] for row in rows if name in row}
