"""Runs the commands of a page in this process, on small stand-ins.

| command | here |
|---|---|
| `dojang train` | trains one small step if the model is the tiny one and all packages are there, else `--dry-run` |
| `dojang eval`, `plan`, `data audit` | run, on one problem and with the tiny model |
| `dojang launch` | runs the command of a cluster without the cluster; `--dry-run` of a SageMaker job |
| `dojang bench`, programs of bench/ and examples/ | their own parser reads the arguments |
| `dojang serve`, `view`, `launch follow` | the command line parses them: they need a run elsewhere, or never end |
| all other `dojang` commands | run |
| `make`, `pytest`, `pip install dojang[EXTRA]` | the target, the file, the extra exists |
| programs of NOT_HERE | recorded |
"""

import argparse
import contextlib
import importlib.util
import io
import re
import runpy
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from doc_blocks import ROOT
from stand_ins import PLACEHOLDERS, SOURCES, StandIns
from typer.main import get_command
from typer.testing import CliRunner

from doc_shell import Answer, value
from dojang.build.preflight import requirements
from dojang.cluster.bootstrap import start_cluster
from dojang.cluster.sagemaker import sdk, submit
from dojang.commands import app
from dojang.commands.bench import available
from dojang.config import recipe
from dojang.config.run_config import RunConfig
from dojang.core import section
from dojang.core.errors import DojangError
from dojang.types import Outcome

__all__ = ["NOT_HERE", "SMALL", "Commands", "command_of", "parse", "play_clusters", "typed"]

NOT_HERE = {
    "aws": "an account of AWS; tests/sagemaker has moto in its place",
    "docker": "a Docker daemon",
    "grafana": "Grafana",
    "mlflow": "a server of MLflow; tests/unit/track asks one",
    "openssl": "random numbers for a token",
    "prometheus": "Prometheus; tests/prometheus runs it",
    "ssh": "another machine",
    "ray": "Ray; tests/on_ray and tests/cluster run it",
    "tensorboard": "a browser",
    "vllm": "vLLM; tests/vllm starts such servers",
    "wandb": "an account of Weights & Biases",
}
"""Programs that only record what they are asked, and what they would need."""

SMALL = (
    "model.device=cpu",
    "steps=1",
    "rollout.prompts_per_step=1",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
    "eval.problems=1",
)
"""Settings for a run of a second."""
RECIPES = ("quickstart", "quickstart-code", "smollm2-gsm8k")
"""For the placeholder RECIPE, the first that works."""
NOT_INSTALLED = (
    "track.wandb needs wandb",
    "cannot use textarena",
    "cannot use skyrl-gym",
    "has no openenv",
    "has no verifiers==",
)
"""Errors about packages that are not here, by the last of all checks."""
ELSEWHERE = ("serve ", "env try ", "launch follow ", "launch entry-point ", "judge serve ", "view ")
"""Commands that need a run or a job elsewhere, or never end: they are only parsed."""
TINY = ("dojang-tiny", "dojang-tiny-code", "dojang-tiny-lake")
_EVALUATE_SMALL = ["--problems", "1", "--max-tokens", "4", "--device", "cpu", "rollout.engine=torch", "judge.workers=1"]


def typed(arguments: Sequence[str], codes: Sequence[int] = (0,)) -> str:
    """Runs `dojang` in this process, which saves the time to import it anew; returns what it prints."""
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert found.exit_code in codes, f"exit code {found.exit_code}: {found.output[:1500]}"
    return str(found.output)


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the words after those. AssertionError if there is none."""
    command: Any = get_command(app)
    rest = list(words)
    while (inner := getattr(command, "commands", None)) and rest and not rest[0].startswith("-"):
        assert rest[0] in inner, f"no command `{rest[0]}`; there are {', '.join(inner)}"
        command = inner[rest.pop(0)]
    return command, rest


def parse(arguments: Sequence[str]) -> None:
    """Has the command line parse the arguments and run nothing."""
    command, rest = command_of(arguments)
    command.make_context(command.name, list(rest))


def play_clusters(commands: "Commands", monkeypatch: pytest.MonkeyPatch) -> None:
    """Has commands for clusters do here what they can without one: AWS's SDK, vLLM and Ray are not installed."""

    def in_a_cluster(inner: list[str], *_: object) -> int:
        if inner[0] == "dojang" or inner[1:3] == ["-m", "dojang"]:
            commands.dojang(inner[1 if inner[0] == "dojang" else 3 :])
        return 0

    monkeypatch.setattr(sdk, "build_request", lambda job: {})
    monkeypatch.setattr(submit, "attach", lambda job, region, profile: 0)
    monkeypatch.setattr(section, "find_spec", lambda package: True)
    monkeypatch.setattr(start_cluster, "ray_cluster", in_a_cluster)


class Commands:
    """Answers the programs of a page, in the reader's folder."""

    def __init__(self, stand_ins: StandIns) -> None:
        self.stand_ins = stand_ins

    def answers(self) -> dict[str, Answer]:
        """A function for each program, for doc_shell."""
        known: dict[str, Answer] = dict.fromkeys(NOT_HERE, lambda arguments: "")
        mine = (self.dojang, self.python, self.torchrun, self.make, self.pytest, self.pip, self.srun, self.ci_run)
        return {**known, **{each.__name__: each for each in mine}, "python3": self.python}

    def dojang(self, arguments: list[str]) -> str:
        """Runs a command on stand-ins, made small; for RECIPE, a recipe that has what the settings are about."""
        wrong: list[DojangError] = []
        for name in RECIPES if "RECIPE" in arguments else ("",):
            try:
                return self._dojang(self.filled([name if each == "RECIPE" else each for each in arguments]))
            except DojangError as error:
                wrong.append(error)
        raise wrong[0]

    def _dojang(self, arguments: list[str]) -> str:
        ways = {
            "train": self._train,
            "data": self._data,
            "eval": self._compare if "--compare" in arguments else self._evaluate,
            "show": self._show,
            "export": self._export,
            "plan": self._plan,
            "bench": self._bench,
        }
        if " ".join(arguments).startswith(ELSEWHERE):
            parse(arguments)
            return ""
        return ways.get(arguments[0], self._run)(arguments)

    def _run(self, arguments: list[str]) -> str:
        """Runs a command as it is, or a little smaller."""
        self._supply(arguments)
        return typed([*arguments, *_smaller(arguments)])

    def _data(self, arguments: list[str]) -> str:
        """Prepares or audits a dataset, of its published files."""
        if arguments[1] == "prepare":  # an earlier block may have prepared it, too
            shutil.rmtree(value(arguments, "--output"), ignore_errors=True)
        elif arguments[2] in SOURCES:
            self.stand_ins.supply_published(arguments[2], value(arguments, "--input"))
        return self._run(arguments)

    def _export(self, arguments: list[str]) -> str:
        self.stand_ins.supply(arguments[1:2])
        self.stand_ins.remove(self.stand_ins.folder / arguments[2])
        return typed(arguments)

    def _bench(self, arguments: list[str]) -> str:
        _, name, *rest = arguments
        assert name in available(), f"no benchmark {name!r}; there are {', '.join(available())}"
        return read_arguments(ROOT / "bench" / f"{name}.py", rest)

    def filled(self, arguments: Sequence[str]) -> list[str]:
        """The arguments with something for every placeholder."""
        filled = [each.replace("algo.name=NAME", "algo.name=grpo") for each in arguments]
        if filled[:2] in (["data", "prepare"], ["data", "audit"]):
            filled = [SOURCES[filled[2]] if each == "FILE" else each for each in filled]
        names = "|".join(map(re.escape, PLACEHOLDERS))
        filled = [
            re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda found: PLACEHOLDERS[found[0]], each) for each in filled
        ]
        if any("DIR" in each for each in filled):
            folder = self.stand_ins.folder_of(_dataset(filled))
            filled = [re.sub(r"\bDIR\b", folder, each) for each in filled]
        return filled

    def _supply(self, arguments: Sequence[str]) -> None:
        """Makes stand-ins for what the arguments name, but not for what the command writes."""
        outputs = {"--output", "--out", "--run-dir", "--keep"}
        self.stand_ins.supply(each for before, each in pairwise(["", *arguments]) if before not in outputs)

    def _plan(self, arguments: list[str]) -> str:
        """Plans a run. It need not fit this machine (exit code 4) unless the page names another."""
        self._supply(arguments)
        overrides = [each for each in arguments[2:] if "=" in each and not each.startswith("--")]
        self.stand_ins.supply(re.findall(r"\bdata/[\w-]+", str(recipe.load(arguments[1], overrides))))
        return typed([*arguments, "--problems", "1"], (0,) if "--instance" in arguments else (0, 4))

    def _compare(self, arguments: list[str]) -> str:
        """Compares two evaluations. Those of stand-ins may be of different data."""
        try:
            return typed(arguments)
        except DojangError as error:
            if "no problems in common" not in str(error):
                raise
        return ""

    def _show(self, arguments: list[str]) -> str:
        """Shows samples. The finished run has few, of one outcome."""
        self._supply(arguments)
        if "--outcome" in arguments:
            assert value(arguments, "--outcome") in list(Outcome), f"outcomes are {', '.join(Outcome)}"
        try:
            return typed([*arguments, *_smaller(arguments)])
        except DojangError as error:
            if "has no samples with" not in str(error):
                raise
        return ""

    def _train(self, arguments: list[str]) -> str:
        """Trains one small step with the tiny model, else `--dry-run`; a run directory is then a copy of the finished
        run."""
        if len(arguments) == 1 or arguments[1].startswith("-"):
            return typed(arguments)
        self._supply(arguments)
        options = [each for each in arguments if each.startswith("--")]
        overrides = [each for each in arguments[2:] if "=" in each and not each.startswith("--")]
        config = recipe.load(arguments[1], overrides)
        self.stand_ins.supply(re.findall(r"\bdata/[\w-]+", str(config)))
        trains = not {"--dry-run", "--print-join"} & set(options) and _can_train(config)
        small = [each for each in SMALL if each != "steps=1" or config.epochs is None]
        small.append(f"rollout.prompts_per_step={config.train.minibatches}")
        checked = ["model.device=cpu", *_smaller(arguments), "--dry-run"]
        try:
            found = typed([*arguments, *(small if trains else checked)])
        except DojangError as error:
            if not any(each in str(error) for each in NOT_INSTALLED):
                raise
            return ""
        if trains:
            return found
        if "--run-dir" in options:
            shutil.copytree(self.stand_ins.finished / "run", value(arguments, "--run-dir"), dirs_exist_ok=True)
        return found

    def _evaluate(self, arguments: list[str]) -> str:
        """Evaluates the model of the finished run on one problem."""
        self._supply(arguments)
        small = list(arguments)
        if not (self.stand_ins.folder / small[1]).exists() and small[1] not in TINY:
            small[1] = str(self.stand_ins.finished / "model")
        if "--shots" in small and "--data" not in small:
            small += ["--data", f"gsm8k={self.stand_ins.folder_of('gsm8k')}"]
        if any(each.startswith("rollout.max_tokens=") for each in small):
            small.append("rollout.max_tokens=4")
        return typed([*small, *_EVALUATE_SMALL])

    def torchrun(self, arguments: list[str]) -> str:
        """Has torchrun's own parser read its arguments, and `dojang train` the rest, without training."""
        from torch.distributed.run import get_args_parser

        read = get_args_parser().parse_args(arguments)
        if read.training_script == "dojang" and read.module:
            self.dojang([*read.training_script_args, "--dry-run"])
        return ""

    def python(self, arguments: list[str]) -> str:
        """Runs `python -m dojang` and `python -c`; reads the arguments of programs of this repository."""
        match arguments:
            case ["-m", "dojang", *rest]:
                return self.dojang(rest)
            case ["-c", program]:
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    exec(program, {})
                return said.getvalue()
            case ["-m", module, *_]:
                assert module.split(".")[0] in ("verl", "pip", "venv", "mkdocs", "pytest"), f"unknown module {module}"
                return ""
            case [program, *rest]:
                if (self.stand_ins.folder / program).is_file():
                    with warnings.catch_warnings(action="default"):
                        runpy.run_path(program, run_name="__main__")
                    return ""
                return read_arguments(ROOT / program, self.filled(rest))
        raise AssertionError("python without arguments")

    def make(self, arguments: list[str]) -> str:
        """Checks that the targets exist."""
        known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for each in arguments:
            assert "=" in each or each in known, f"no target {each}; there are {', '.join(known)}"
        return ""

    def pytest(self, arguments: list[str]) -> str:
        """Checks that the files exist."""
        for each in arguments:
            assert not each.startswith("tests/") or (ROOT / each).exists(), f"{each} does not exist"
        return ""

    def pip(self, arguments: list[str]) -> str:
        """Checks that extras of dojang exist."""
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for each in re.findall(r"dojang\[([\w,-]+)\]", " ".join(arguments)):
            assert set(each.split(",")) <= extras.keys(), f"no extra {each}; there are {', '.join(extras)}"
        return ""

    def srun(self, arguments: list[str]) -> str:
        """Runs what Slurm would run on every host."""
        at = arguments.index("dojang")
        return self.dojang(arguments[at + 1 :])

    def ci_run(self, arguments: list[str]) -> str:
        """Checks that .ci/run exists."""
        assert (ROOT / ".ci" / "run").is_file()
        return ""


def read_arguments(program: Path, arguments: Sequence[str]) -> str:
    """Has the parser of a program of this repository read the arguments, and runs nothing after that."""
    assert program.is_file(), f"{program.relative_to(ROOT)} does not exist"

    class Read(Exception):
        pass

    def checked(read: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(self: argparse.ArgumentParser, *given: Any, **more: Any) -> Any:
            read(self, *given, **more)
            raise Read

        return replaced

    kind, said, ended, missing = argparse.ArgumentParser, io.StringIO(), None, None
    with (
        patch.object(sys, "argv", [str(program), *arguments]),
        patch.object(sys, "path", [str(program.parent), *sys.path]),
        patch.object(kind, "parse_args", checked(kind.parse_args)),
        patch.object(kind, "parse_known_args", checked(kind.parse_known_args)),
        contextlib.redirect_stderr(said),
    ):
        try:
            runpy.run_path(str(program), run_name="__main__")
        except Read:
            return ""
        except SystemExit as error:
            ended = error.code
        except ModuleNotFoundError as error:
            missing = error.name
    if missing in ("ray", "trl", "vllm"):
        return _check_options(program, arguments)
    assert not missing, f"{program.name} needs {missing}"
    assert ended in (None, 0), f"{program.name} {' '.join(arguments)}: {said.getvalue()}"
    assert ended == 0 or not arguments, f"{program.name} reads no arguments"
    return ""


def _check_options(program: Path, arguments: Sequence[str]) -> str:
    """Looks for the options in the text of a program that cannot be started here."""
    for each in (each for each in arguments if each.startswith("--")):
        assert f'"{each}"' in program.read_text(), f"{program.name} has no option {each}"
    return ""


def _dataset(arguments: Sequence[str]) -> str:
    """Dataset of the placeholder DIR."""
    if any(each.startswith("gsm8k=DIR") for each in arguments):
        return "gsm8k"
    if arguments[0] == "train" and arguments[1] in recipe.shipped():
        return str(recipe.read(arguments[1])["data"]["name"])
    return "contests"


def _can_train(config: RunConfig) -> bool:
    """Whether a step of training takes a second here: the tiny model in this process, packages there, no tracker."""
    packages = [each for needed in requirements(config) for each in needed.packages]
    return (
        (config.model.name in TINY or Path(config.model.name).is_dir())
        and (config.distillation is None or not config.distillation.url)
        and config.runtime.name == "local"
        and not config.loop.workers
        and not config.train.compile
        and not config.track.model_dump(exclude_defaults=True)
        and all(importlib.util.find_spec(each) for each in packages)
    )


def _smaller(arguments: Sequence[str]) -> list[str]:
    """What makes a command quicker, or fits the finished run; the last value of an option counts."""
    match arguments:
        case ["data", "audit", *_] if "--keep" not in arguments:
            return ["--problems", "1"]
        case ["launch", "sagemaker", *_]:
            return ["--dry-run"]
        case ["resume", *_]:
            return ["steps=2"]
        case ["show", *_] if "--diff" in arguments:
            return ["--diff", "0", "1"]
        case ["train", "codefu-7b-stage2", *_]:  # its model, that of stage 1, is the tiny one here
            return ["rollout.max_tokens=64"]
        case _:
            return []
