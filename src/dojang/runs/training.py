"""One training run, from what the user typed to the summary: the life of a run directory.

Importing this is cheap; torch is loaded only once the configuration has been found right.
"""

import asyncio
import gc
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DojangError, Interrupted, RanksLost, RunDirError
from dojang.core.run_dir import RunDir, write_atomic
from dojang.protocols import Judge
from dojang.runs.summary import Ending, finish
from dojang.track.console import speaker

if TYPE_CHECKING:
    from dojang.build.assemble import Prepared
    from dojang.loop.run_state import State
    from dojang.loop.sync import Run
    from dojang.track.exporter import Couriers

__all__ = ["dry_run", "load_rooms", "run"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RESUMABLE = (
    *("steps", "epochs", "rollout.", "train.", "eval.every", "checkpoint.", "health.", "judge.", "track", "runtime"),
    *("distillation.url", "distillation.timeout_s", "distillation.attempts", "distillation.concurrency"),
    *("distillation.max_errors", "distillation.token_env"),
    *("tester.max_tokens", "tester.lr", "tester.url", "tester.engines", "tester.trainers"),
)
"""Keys that may change when a run is resumed: the finished steps keep their meaning."""
KEPT = ("train.lora", "train.optimizer", "train.ref_model_sync_steps")
"""But not these of them, which say what a checkpoint holds."""


def run(recipe: str, overrides: Sequence[str], run_dir: Path | None, *, resume: bool) -> None:
    """Train, and leave a summary behind whatever happens."""
    config = recipes.load(recipe, overrides)
    if os.environ.get("RANK", "0") != "0":  # torchrun's: the first process runs the loop, the others help it train
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a word: the first one has them
        from dojang.build import assemble

        assemble.follow(config)
        return
    directory = _choose_directory(recipe, run_dir, resume)
    _check_directory(directory, config, resume=resume)
    console = Console()
    console.print(f"run directory: {directory.path}", highlight=False, soft_wrap=True)
    with ExitStack() as running:
        running.callback(directory.unlock)
        if directory.path.is_dir():
            directory.lock()  # now rather than later: a directory in use is known before torch is loaded
        load_rooms()
        again = [*(_torchrun() or _program()), "train", recipe, *overrides, "--run-dir", str(directory.path)]
        ending = Ending(recipe, config.steps, shlex.join(_program()), shlex.join([*again, "--resume"]), directory)

        def settle(config: RunConfig) -> None:
            directory.lock()
            _check_directory(directory, config, resume=resume)  # somebody may have been here in the meantime
            write_atomic(directory.run, json.dumps({"recipe": recipe, "overrides": list(overrides)}).encode())
            write_atomic(directory.config, recipes.to_yaml(config).encode())

        failures = config.runtime.max_failures if config.runtime.name == "ray" else 0
        started = time.monotonic()
        try:
            while not _once(config, console, ending, settle, may_fail=failures > 0):
                failures -= 1
                settle = _nothing
        except DojangError as error:
            if settle is not _nothing or directory.summary.exists():
                raise
            # It has begun, and could not begin again: a machine is gone, and there is no other.
            config = recipes.load(str(directory.config))  # with epochs resolved to steps
            ending = replace(ending, steps=config.steps)
            finish(ending, console, status="failed", seconds=time.monotonic() - started)
            with closing(_open_trackers(config, console, ending, live=False)) as couriers:
                couriers.start()
                couriers.finish("failed", hurry=True)
            raise type(error)(f"{error}\nresume with: {ending.command}") from error


def _once(
    config: RunConfig, console: Console, ending: Ending, settle: Callable[[RunConfig], None], *, may_fail: bool
) -> bool:
    """Train to the end; False if trainers on other machines were lost, and it `may_fail`: then it can begin again where
    it was saved, with everything made anew. `settle` takes the directory once nothing is wrong with the data."""
    from dojang.build import assemble
    from dojang.build.prompt_lengths import describe_dropped, describe_multiple_answers

    on_ray = config.runtime.name == "ray"
    if on_ray:
        _leave_when_told()
    prepared = assemble.prepare(config)  # before a directory is made: a mistake here leaves none behind
    config = prepared.config
    ending = replace(ending, steps=config.steps, dropped=prepared.dropped)
    if config.data.filter_multiple_answers:
        console.print(describe_multiple_answers(prepared.multiple_answers), highlight=False, soft_wrap=True)
        ending = replace(ending, multiple_answers=prepared.multiple_answers)
    if any(prepared.dropped.values()):
        said = describe_dropped(list(prepared.dropped.items()))
        console.print(f"overlong prompts left out: {said}", highlight=False, soft_wrap=True)
    if on_ray:
        _leave_when_told()  # Ray has its own idea of signals
    with closing(_open_trackers(config, console, ending)) as couriers:
        settle(config)
        try:
            _train(config, prepared, console, ending, couriers, may_fail=may_fail)
        except RanksLost as error:
            if not may_fail:
                raise
            asyncio.run(prepared.judge.close())  # they may have been lost before the loop began
            console.print(f"{error}; beginning again where the run was saved last", highlight=False, soft_wrap=True)
            return False
    return True


def _open_trackers(config: RunConfig, console: Console, ending: Ending, *, live: bool = True) -> "Couriers":
    later = shlex.join([*_program(), "track", str(ending.directory.path)])
    on_ray = config.runtime.name == "ray"
    say = speaker(console)
    return config.track.open(ending.directory, say, later, steps=config.steps, live=live, on_ray=live and on_ray)


def _leave_when_told() -> None:
    """Until the loop listens to signals itself. Ray has handlers of its own, which break its calls, and the process,
    apart; to leave at once costs nothing that was saved, and Ray's processes end with this one."""

    def leave(number: int, _: object) -> None:
        os.write(2, b"dojang: told to stop while processes were starting; what was saved before can be resumed\n")
        os._exit(Interrupted.exit_code)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)


def _nothing(config: RunConfig) -> None:
    """The directory is this run's already."""


def dry_run(recipe: str, overrides: Sequence[str]) -> None:
    """Check the configuration, the model's name and the data; print what would run."""
    config = recipes.load(recipe, overrides)
    load_rooms()
    from dojang.runs.dry_run import describe

    sys.stdout.write(f"{recipes.to_yaml(config)}\n{describe(config)}\n")


def load_rooms() -> None:
    """Import what a run is composed of, torch and transformers with it. That makes some hundred thousand objects that
    stay: to look for garbage among them, as Python would do again and again, takes a seventh of the time."""
    if "dojang.build.assemble" in sys.modules:
        return
    gc.disable()
    try:
        import_module("dojang.build.assemble")
    finally:
        gc.enable()
    gc.freeze()


def _train(
    config: RunConfig,
    prepared: "Prepared",
    console: Console,
    ending: Ending,
    couriers: "Couriers",
    *,
    may_fail: bool,
) -> None:
    from dojang.build import assemble
    from dojang.loop.run_state import State, load_state

    started = time.monotonic()
    directory = ending.directory
    found = directory.last_checkpoint()
    wired = assemble.build(config, prepared, directory, console, first=_step(found))
    state = load_state(found, wired.gate, wired.problem) if found else State()
    directory.rewind(state.step if found else -1, state.evaluated())
    if found:
        asyncio.run(wired.trainer.restore(found))
        console.print(f"resuming after step {state.step}", highlight=False)

    couriers.start()

    def conclude(status: str) -> None:
        _ignore_signals()  # an impatient second Ctrl-C must not cost the last words
        finish(ending, console, status=status, seconds=state.seconds + time.monotonic() - started)
        couriers.finish(status, hurry=status != "finished")

    try:
        asyncio.run(_loop(wired, state, prepared.judge))
    except BaseException as error:
        if may_fail and isinstance(error, RanksLost):
            raise  # this is not the end
        with suppress(DojangError):  # a full disk may refuse the summary too; the first error is the one to tell
            conclude("interrupted" if isinstance(error, Interrupted) else "failed")
        if isinstance(error, DojangError):
            raise type(error)(f"{error}\nresume with: {ending.command}") from error
        raise
    conclude("finished")


async def _loop(wired: "Run", state: "State", judge: Judge) -> None:
    """Run the loop with Ctrl-C, SIGTERM and a lost terminal turned into a request to stop and save."""
    from dojang.loop.sync import train

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        if _torchrun():  # which sends it again
            signal.signal(number, signal.SIG_IGN)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, ask_to_stop, number)
    try:
        await train(wired, state, stop)
    except RanksLost as error:
        if stop.is_set():  # then to begin again is not what was asked for
            raise Interrupted(
                f"stopped, but {error}: what came after the last checkpoint is to be done again"
            ) from error
        raise
    finally:
        async with AsyncExitStack() as closing_up:  # all of it, whatever fails
            closing_up.callback(wired.tracker.close)
            for each in (judge, wired.trainer, wired.engine, wired.distiller):
                if each is not None:
                    closing_up.push_async_callback(each.close)


def _ignore_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _choose_directory(recipe: str, run_dir: Path | None, resume: bool) -> RunDir:
    if run_dir is not None:
        return RunDir(run_dir)
    name = Path(recipe).stem
    taken = {
        int(path.name.removeprefix(f"{name}-")): RunDir(path)
        for path in Path("runs").glob(f"{name}-*")
        if path.name.removeprefix(f"{name}-").isdecimal()
    }
    if not resume:
        return RunDir(Path("runs") / f"{name}-{max(taken, default=0) + 1}")
    begun = {number: directory for number, directory in taken.items() if directory.holds_a_run()}
    if not begun:
        raise RunDirError(f"there is no run of {recipe!r} under runs/ to resume; say which with --run-dir")
    return begun[max(begun)]


def _check_directory(directory: RunDir, config: RunConfig, *, resume: bool) -> None:
    """A used directory must be resumed, and with what it was started with."""
    if directory.is_foreign():
        raise RunDirError(f"{directory.path} is not empty, and what is in it is no run; choose another --run-dir")
    if resume and not directory.path.is_dir():
        raise RunDirError(f"there is no run in {directory.path} to resume; leave --resume out to start one")
    if not directory.holds_a_run():  # with --resume too: a run may die before its first checkpoint
        return
    if not resume:
        raise RunDirError(
            f"{directory.path} already holds a run; continue it with --resume, or choose another --run-dir"
        )
    done = _step(directory.last_checkpoint())
    if config.epochs is None and config.steps < done:
        raise ConfigError(f"the run in {directory.path} has done {done} steps already; steps={config.steps} is fewer")
    changed = {
        key: values
        for key, values in recipes.differences(recipes.load(str(directory.config)), config).items()
        if not key.startswith(RESUMABLE) or (key.startswith(KEPT) and key != "train.lora.publish")
    }
    if changed:
        listing = "\n".join(f"  - {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"these settings differ from those the run was started with, and are part of what it is:\n{listing}\n"
            "change them back, or start a new run"
        )


def _step(checkpoint: Path | None) -> int:
    return int(checkpoint.name.removeprefix("step-")) if checkpoint else 0


def _torchrun() -> list[str]:
    """How to start as many processes again, if there are several; on several machines there is more to say."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return []
    return ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "dojang"]


def _program() -> list[str]:
    """How to call dojang again: by its name if the shell finds it, else as it was called now."""
    if shutil.which("dojang"):
        return ["dojang"]
    called = Path(sys.argv[0])
    return [sys.executable, "-m", "dojang"] if called.name == "__main__.py" else [os.path.relpath(called)]
