"""Output that cannot be written ends a command with a sentence and an exit code, not with a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dojang.cluster.bootstrap.prometheus_config import write_scrape_config
from dojang.commands import app
from dojang.core.errors import DojangError
from dojang.core.run_dir import RunDir

NOWHERE = Path("/proc/nowhere")  # not even root can make it
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


def refused(*arguments: str) -> DojangError:
    with pytest.raises(DojangError) as caught:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["dashboards", str(NOWHERE)], 2),
        (["eval", "dojang-tiny", "--data", "arithmetic", "--problems", "1", "--output", str(NOWHERE)], 2),
        (["data", "audit", "arithmetic", "--problems", "1", "--output", str(NOWHERE)], 3),
    ],
)
def test_output_that_cannot_be_written(arguments: list[str], code: int) -> None:
    error = refused(*arguments)
    assert f"{NOWHERE} cannot be written: No such file or directory" in str(error)
    assert error.exit_code == code


def test_prepared_data_that_cannot_be_written(tmp_path: Path) -> None:
    problem = {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "test": "",
        "canonical_solution": "",
    }
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(problem) + "\n")
    error = refused("data", "prepare", "humaneval", "--input", str(tmp_path), "--output", str(NOWHERE))
    assert f"--output {NOWHERE} cannot be written" in str(error)
    assert error.exit_code == 3


def test_a_run_directory_that_cannot_be_made() -> None:
    with pytest.raises(DojangError, match=f"cannot write to {NOWHERE}: No such file") as caught:
        RunDir(NOWHERE).lock()
    assert caught.value.exit_code == 5


def test_a_scrape_configuration_that_cannot_be_written() -> None:
    with pytest.raises(DojangError, match=f"--prometheus {NOWHERE}/prometheus.yml cannot be written"):
        write_scrape_config(NOWHERE / "prometheus.yml", {}, 8080)


def test_the_command_itself_prints_one_line() -> None:
    command = [sys.executable, "-m", "dojang", "dashboards", str(NOWHERE)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
