"""One training run, from what the user typed to the summary: the life of a run directory.

Importing this is cheap; torch is loaded only once the configuration has been found right.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dojang import recipe as recipes
from dojang.config import RunConfig
from dojang.errors import ConfigError, DojangError, Interrupted, RunDirError
from dojang.rundir import RunDir, write_atomic

if TYPE_CHECKING:
    from dojang.loop.state import State
    from dojang.loop.sync import Run

__all__ = ["dry_run", "run"]

RESUMABLE = ("steps", "checkpoint.every", "eval.every")
"""Keys that may change when a run is resumed: they do not touch what the finished steps did."""


def run(recipe: str, overrides: Sequence[str], run_dir: Path | None, *, resume: bool) -> None:
    """Train, and leave a summary behind whatever happens."""
    config = recipes.load(recipe, overrides)
    directory = _choose_directory(recipe, run_dir, resume)
    command = _resume_command(recipe, overrides, directory)
    if resume and not directory.path.is_dir():
        raise RunDirError(f"there is no run in {directory.path} to resume; leave --resume out to start one")
    directory.lock()
    try:
        _prepare(directory, config, recipe, overrides, resume=resume)
        _train(config, directory, recipe, command)
    finally:
        directory.unlock()


def dry_run(recipe: str, overrides: Sequence[str]) -> None:
    """Check the configuration, the model's name and the data; print what would run."""
    config = recipes.load(recipe, overrides)
    from dojang.plan import describe

    sys.stdout.write(f"{recipes.to_yaml(config)}\n{describe(config)}\n")


def _train(config: RunConfig, directory: RunDir, recipe: str, command: str) -> None:
    from dojang import compose
    from dojang.loop.state import State, load_state
    from dojang.summary import Ending, conclude

    console = Console()
    console.print(f"run directory: {directory.path}", highlight=False)
    found = directory.last_checkpoint()
    first = int(found.name.removeprefix("step-")) if found else 0
    wired = compose.build(config, directory, console, first=first)
    state = load_state(found, wired.gate) if found else State()
    directory.rewind(state.step if found else -1, max(state.scores, default=-1))
    if found:
        asyncio.run(wired.trainer.restore(found))
        console.print(f"resuming after step {state.step}", highlight=False)
    ending = Ending(recipe, config.steps, shlex.join(_program()), command, directory)
    try:
        asyncio.run(_loop(wired, state))
    except BaseException as error:
        with suppress(DojangError):  # a full disk may refuse the summary too; the first error is the one to tell
            conclude(ending, console, status="interrupted" if isinstance(error, Interrupted) else "failed")
        if isinstance(error, DojangError):
            raise type(error)(f"{error}\nresume with: {command}") from error
        raise
    conclude(ending, console, status="finished")


async def _loop(wired: "Run", state: "State") -> None:
    """Run the loop with Ctrl-C and SIGTERM turned into a request to stop; a second one does not wait."""
    from dojang.loop.sync import train

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask_to_stop, number)
    try:
        await train(wired, state, stop)
    finally:
        await wired.engine.close()
        wired.tracker.close()


def _choose_directory(recipe: str, run_dir: Path | None, resume: bool) -> RunDir:
    if run_dir is not None:
        return RunDir(run_dir)
    name = Path(recipe).stem
    taken = {
        int(path.name.removeprefix(f"{name}-")): path
        for path in Path("runs").glob(f"{name}-*")
        if path.name.removeprefix(f"{name}-").isdecimal()
    }
    if resume:
        if not taken:
            raise RunDirError(f"there is no run of {recipe!r} under runs/ to resume; say which with --run-dir")
        return RunDir(taken[max(taken)])
    return RunDir(Path("runs") / f"{name}-{max(taken, default=0) + 1}")


def _prepare(directory: RunDir, config: RunConfig, recipe: str, overrides: Sequence[str], *, resume: bool) -> None:
    """A fresh directory gets its configuration; a used one must be resumed, and with the same one."""
    if directory.is_foreign():
        raise RunDirError(f"{directory.path} is not empty, and what is in it is no run; choose another --run-dir")
    if not directory.holds_a_run():  # with --resume too: a run may die before its first checkpoint
        write_atomic(directory.run, json.dumps({"recipe": recipe, "overrides": list(overrides)}).encode())
        write_atomic(directory.config, recipes.to_yaml(config).encode())
        return
    if not resume:
        raise RunDirError(
            f"{directory.path} already holds a run; continue it with --resume, or choose another --run-dir"
        )
    changed = {
        key: values
        for key, values in recipes.differences(recipes.load(str(directory.config)), config).items()
        if key not in RESUMABLE
    }
    if changed:
        listing = "\n".join(f"  - {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"a run can only be resumed with the settings it was started with, but these differ:\n{listing}\n"
            f"change them back, or start a new run. Only {', '.join(RESUMABLE)} may change"
        )
    write_atomic(directory.config, recipes.to_yaml(config).encode())


def _program() -> list[str]:
    """How to call dojang again: by its name if the shell finds it, else as it was called now."""
    if shutil.which("dojang"):
        return ["dojang"]
    called = Path(sys.argv[0])
    return [sys.executable, "-m", "dojang"] if called.name == "__main__.py" else [os.path.relpath(called)]


def _resume_command(recipe: str, overrides: Sequence[str], directory: RunDir) -> str:
    return shlex.join([*_program(), "train", recipe, *overrides, "--run-dir", str(directory.path), "--resume"])
