"""The command line as a user meets it: each test starts the program."""

import os
import resource
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import commands
import dojang
from dojang.commands import app, bench, cli_data
from dojang.commands import cli_judge as cli
from dojang.core.errors import ConfigError, Interrupted
from dojang.judge.problem_file import Which
from dojang.programs import Isolation, Stop

HEAVY = ("torch", "transformers", "pydantic", "numpy", "pyarrow", "matplotlib", "yaml")


def run(*arguments: str, cwd: Path | None = None, start: Any = subprocess.run) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dojang", *arguments]
    done = start(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)
    assert isinstance(done, subprocess.CompletedProcess)
    return done


def train(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run("train", *arguments, cwd=cwd, start=commands.run)


def loaded_after(code: str) -> set[str]:
    """The heavy packages that are loaded once `code` has run."""
    report = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nsys.stderr.write(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    modules = set(result.stderr.split())
    assert "dojang" in modules
    return modules & set(HEAVY)


def cpu_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(*arguments).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_immediate() -> None:
    assert min(cpu_seconds("--help") for _ in range(3)) < 0.5


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_light_commands_load_no_heavy_packages(arguments: list[str]) -> None:
    assert loaded_after(f"sys.argv[1:] = {arguments}; from dojang.commands import main; main()") == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import dojang") == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--help"],
        ["train", "--keys"],
        ["train", "quickstart", "steps=x"],
        ["export", "--help"],
        ["export", "nosuch", "out"],
        ["judge", "serve", "--help"],
        ["judge", "run", "nosuch.py", "--problem=nosuch.json"],
        ["bench", "nosuch"],
        ["plan", "--help"],
        ["plan", "quickstart", "steps=x"],
        ["plan", "quickstart", "--instance=nosuch"],
    ],
)
def test_help_and_mistakes_come_before_torch(arguments: list[str]) -> None:
    loaded = loaded_after(f"sys.argv[1:] = {arguments}; from dojang.commands import main; main()")
    assert not loaded & {"torch", "transformers", "matplotlib", "pyarrow"}


def test_help_names_commands_and_exit_codes() -> None:
    result = run("--help")
    assert result.returncode == 0
    words = (
        "train",
        "export",
        "doctor",
        "judge",
        "bench",
        "--version",
        "Exit codes: 0 success, 2 configuration",
        "8 the judge failed",
    )
    for word in words:
        assert word in " ".join(result.stdout.split())


def test_help_of_train_names_its_options() -> None:
    result = run("train", "--help")
    for word in ("KEY=VALUE", "--run-dir", "--resume", "--dry-run", "--keys"):
        assert word in result.stdout


def test_help_of_export_names_its_options() -> None:
    result = run("export", "--help")
    for word in ("RUN_DIR_OR_CHECKPOINT", "OUTPUT", "--dtype", "bfloat16|float32|float16", "--which"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch", "out"], 5, "dojang: nosuch is neither a run directory nor a checkpoint"),
        (["nosuch", "."], 2, "is not empty; give an empty or new directory"),
        (["nosuch", "out", "--dtype=int4"], 2, "int4"),
        (["nosuch"], 2, "Missing argument 'OUTPUT'"),
    ],
)
def test_an_impossible_export_is_refused_without_traceback(
    arguments: list[str], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("the only copy")
    result = run("export", *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{dojang.__version__}\n", "")


def test_the_installed_version_is_the_one_in_the_source() -> None:
    from importlib.metadata import version

    assert version("dojang") == dojang.__version__


def test_keys_need_no_recipe() -> None:
    result = train("--keys")
    assert result.returncode == 0
    assert "train.lr: float = 1e-06\n    Peak learning rate.\n" in result.stdout
    assert "[only with data.name=gsm8k]" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "dojang: unknown recipe 'nosuch'. Shipped recipes: "),
        (["quikstart"], "Did you mean quickstart?"),
        (["quickstart", "train.lrr=1"], "train.lrr: no such key; did you mean train.lr?"),
        (["quickstart", "steps=ten"], "steps: input should be a valid integer"),
        (["quickstart", "train.minibatches=99"], "lower train.minibatches or raise rollout.prompts_per_step"),
        (["quickstart", "steps"], "override 'steps' must have the form key=value"),
        (["missing.yaml"], "recipe file missing.yaml does not exist"),
        ([], "  quickstart                      Teach a very small model to add, on a laptop CPU"),
        (["gsm8k"], "Did you mean smollm2-gsm8k"),
        (["quickstart", "--nosuch"], "No such option: --nosuch"),
    ],
)
@pytest.mark.parametrize("mode", ["--dry-run", "--run-dir=run"])
def test_a_wrong_setting_is_one_message_and_exit_code_2(
    arguments: list[str], words: str, mode: str, tmp_path: Path
) -> None:
    result = train(*arguments, mode, cwd=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []  # nothing was started


def test_resuming_what_was_never_started(tmp_path: Path) -> None:
    result = train("quickstart", "--resume", cwd=tmp_path)
    assert result.returncode == 5
    assert "no run of 'quickstart' under runs/ to resume; give its directory with --run-dir" in result.stderr
    result = train("quickstart", "--resume", "--run-dir=mine", cwd=tmp_path)
    assert result.returncode == 5
    assert "no run in mine to resume; check the path, or start a new run" in result.stderr


def test_a_run_directory_in_use_or_of_another_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("the only copy")
    result = train("quickstart", f"--run-dir={tmp_path}")
    assert result.returncode == 5
    assert "holds no run" in result.stderr
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    result = train("quickstart", f"--run-dir={tmp_path}")
    assert result.returncode == 5
    assert f"{tmp_path} already holds a run; continue it with `dojang resume {tmp_path}`" in result.stderr


def test_a_file_as_run_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = train("quickstart", "--run-dir=file", cwd=tmp_path)
    assert result.returncode == 5
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_run_on_ray_without_ray_is_refused(tmp_path: Path) -> None:
    result = train("quickstart", "runtime=ray", "--run-dir=run", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == ("dojang: runtime.name=ray needs ray, not installed here: pip install 'dojang[ray]'\n")
    assert list(tmp_path.iterdir()) == []


def test_settings_may_not_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    from dojang.config import recipe as recipes

    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text(recipes.to_yaml(recipes.load("quickstart")))
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    result = train("quickstart", "seed=9", "train.lr=1", "steps=50", f"--run-dir={tmp_path}", "--resume")
    assert result.returncode == 2
    assert "  - seed: was 0, now 9 (the next steps would repeat some problems" in result.stderr
    assert "steps: was" not in result.stderr  # a run may be made longer
    assert "train.lr: was" not in result.stderr  # and go on more carefully


def test_a_run_cannot_be_resumed_to_fewer_steps_than_it_has_done(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints" / "step-000012").mkdir(parents=True)
    result = train("quickstart", "steps=7", f"--run-dir={tmp_path}", "--resume")
    assert result.returncode == 2
    assert "has done 12 steps already; steps=7 is fewer" in result.stderr


def test_a_dry_run_says_what_would_happen_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = train("quickstart", "steps=7", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "steps: 7\n" in result.stdout
    assert "would run:" in result.stdout
    assert "model directory" in result.stdout
    assert "7 of 16 problems x 8 samples (896 samples of up to 32 tokens" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_benchmark_is_a_list_of_the_known_ones() -> None:
    result = run("bench", "nosuch")
    assert result.returncode == 2
    assert "dojang: unknown benchmark 'nosuch'; known: " in result.stderr
    assert "scale, speculation, startup" in result.stderr
    assert "machine" not in result.stderr  # part of the others
    assert run("bench").stderr == result.stderr.replace(
        "unknown benchmark 'nosuch'; known:", "give the name of a benchmark:"
    )


def test_a_benchmark_gets_the_rest_of_the_line(tmp_path: Path) -> None:
    result = run("bench", "startup", "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "usage: startup.py" in result.stdout
    assert run("bench", "startup", "--nosuch").returncode == 2


def test_benchmarks_need_the_source_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dojang.commands.bench.FOLDER", tmp_path / "bench")
    with pytest.raises(ConfigError, match="benchmarks are part of the source tree"):
        bench.run("judge", [])


def test_choices_are_the_ones_there_are() -> None:
    from dojang.build.prepare_dataset import DATASETS, GSM8K

    assert {*cli_data.DATASETS} == {*DATASETS, GSM8K}
    assert {*cli.IsolationLevel} == {"auto", *Isolation}
    assert [*cli.StopAfter] == [*Stop]
    assert [*cli.Tests] == [*get_args(Which)]


def test_no_command_is_a_call_for_help() -> None:
    result = run()
    assert "Usage:" in result.stdout + result.stderr


CONSOLE_SCRIPT = """
import sys
from dojang.__main__ import main
sys.path.remove("")
try:
    main()
except SystemExit:
    import mine
"""


def test_modules_of_the_current_directory_can_be_imported_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('imported')\n")
    command = [sys.executable, "-c", CONSOLE_SCRIPT, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.splitlines()[1:] == ["imported"], result.stderr
    result = subprocess.run([command[0], "-P", *command[1:]], capture_output=True, text=True, cwd=tmp_path)
    assert "imported" not in result.stdout


SMALL = ["steps=1", "rollout.prompts_per_step=2", "rollout.group_size=2", "eval.problems=2", "--run-dir=run"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_needs_only_another_cache(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    own = {"HOME": str(tmp_path / "home"), "DOJANG_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "dojang", "train", "quickstart", *SMALL]
    result = commands.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **own})
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "cache").is_dir() == (shutil.which("g++") is not None)


def test_ctrl_c_in_a_command_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dojang.commands.doctor.examine", interrupted)
    with pytest.raises(Interrupted, match="interrupted"):
        CliRunner().invoke(app, ["doctor"], catch_exceptions=False)
