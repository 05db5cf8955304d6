"""Runs one training run: checks the configuration, locks the run directory, trains, writes the summary.

Importing this module is cheap; torch is imported after the configuration is checked.
"""

import asyncio
import gc
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dojang.build.preflight import check_disk_space, check_usable
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.error_list import ErrorList
from dojang.core.errors import DojangError, Interrupted, RanksLost
from dojang.core.in_process import function_name, in_process
from dojang.core.interrupt import exit_at_once
from dojang.core.run_dir import RunDir
from dojang.protocols import Judge
from dojang.runs.environment import record_start
from dojang.runs.resume import (
    Fit,
    Settings,
    check_directory,
    choose_directory,
    reserve_directory,
    settings_of,
    step_of,
    write_settings,
)
from dojang.runs.stop import STOP_SIGNALS, StopRequest, in_main_thread
from dojang.runs.summary import Ending, finish
from dojang.track.console import console_printer

if TYPE_CHECKING:
    from dojang.build.assemble import Prepared
    from dojang.loop.run import Run
    from dojang.loop.run_state import State
    from dojang.track.exporter import Exporters

__all__ = ["dry_run", "import_build", "new_directory", "process_count", "resume", "run", "start"]


def run(
    recipe: str,
    overrides: Sequence[str],
    run_dir: Path | None,
    *,
    resume: bool,
    join: bool = False,
    fit: Fit | None = None,
) -> None:
    """Trains, and writes a summary however the run ends. With `resume`, continues the run in the directory. With
    `join`, rollout workers of other machines may join, at any free port unless loop.listen is set."""
    directory = choose_directory(recipe, run_dir, resume=resume)
    settings = _settings(recipe, overrides, directory, resume=resume, join=join)
    if run_dir is None and not resume:
        directory = new_directory(recipe)
    start(directory, settings, resume=resume, fit=fit)


def new_directory(recipe: str) -> RunDir:
    """The directory of a new run, made and locked in the process that runs the loop. The caller must pass it to
    `start`, which removes it again if the run is refused."""
    return reserve_directory(recipe) if _runs_loop() else choose_directory(recipe, None, resume=False)


def _runs_loop() -> bool:
    """Reports whether this process runs the loop: torchrun's rank 0. The others only train."""
    return os.environ.get("RANK", "0") == "0"


def _settings(recipe: str, overrides: Sequence[str], directory: RunDir, *, resume: bool, join: bool) -> Settings:
    settings = settings_of(recipe, overrides, directory, resume=resume)
    if join and not settings.config.loop.listen:
        settings = settings_of(recipe, [*overrides, "loop.listen=0.0.0.0:0"], directory, resume=resume)
    return settings


def resume(run_dir: Path, overrides: Sequence[str], fit: Fit | None = None) -> None:
    """Continues the run in a directory, with its settings and further overrides."""
    directory = RunDir(run_dir)
    start(directory, settings_of(None, overrides, directory, resume=True), resume=True, fit=fit)


def start(
    directory: RunDir,
    settings: Settings,
    *,
    resume: bool,
    console: Console | None = None,
    stop: StopRequest | None = None,
    fit: Fit | None = None,
) -> None:
    """Starts or resumes a run, and returns at its end. `fit` chooses what depends on the memory of this machine.

    In the main thread SIGINT, SIGTERM and SIGHUP stop it after a checkpoint; `stop` does from any thread.
    """
    config = settings.config
    if not _runs_loop():
        if in_main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # end silently: rank 0 reports
        from dojang.build import assemble

        assemble.run_worker_rank(config)
        return
    try:
        settings = settings.fitted(fit, process_count())
        _start(directory, settings, console or Console(), stop or StopRequest(), resume=resume)
    finally:
        directory.unlock()


def _start(directory: RunDir, settings: Settings, console: Console, stop: StopRequest, *, resume: bool) -> None:
    config = settings.config
    check_directory(directory, config, resume=resume)
    again = _resume_call(config, directory) or shlex.join([*(_torchrun() or _program()), "resume", str(directory.path)])
    for line in (f"run directory: {directory.path}", *settings.notes):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if directory.path.is_dir():
        directory.lock()  # before torch is imported, to report a directory in use at once
    import_build()
    ending = Ending(settings.recipe, config.steps, shlex.join(_program()), again, directory)

    def claim_directory(config: RunConfig) -> None:
        directory.lock()
        check_directory(directory, config, resume=resume)  # another process may have used it meanwhile
        write_settings(directory, settings, config)
        record_start(directory, step_of(directory.last_checkpoint()))
        look = shlex.join([*_program(), "view", str(directory.path)])
        for line in (f"to resume: {again}", f"to look at it: {look}"):
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    failures = config.runtime.max_failures if config.runtime.name == "ray" else 0
    started = time.monotonic()
    try:
        while not _once(config, console, ending, claim_directory, stop, may_fail=failures > 0):
            failures -= 1
            claim_directory = _keep_directory
    except KeyboardInterrupt:  # a second Ctrl-C, or one before the first step
        if not directory.run.exists():
            raise
        raise Interrupted(f"stopped at once; {_describe_saved(directory)}\nresume with: {again}") from None
    except DojangError as error:
        if claim_directory is not _keep_directory or directory.summary.exists():
            raise
        # The run has started but could not restart: a node is gone, without a replacement.
        config = recipes.load(str(directory.config))  # with epochs resolved to steps
        ending = replace(ending, steps=config.steps)
        finish(ending, console, status="failed", seconds=time.monotonic() - started, error=error)
        with closing(_open_trackers(config, console, ending, live=False)) as exporters:
            exporters.start()
            exporters.finish("failed", hurry=True)
        raise type(error)(f"{error}\nresume with: {ending.command}") from error


def _describe_saved(directory: RunDir) -> str:
    if (found := directory.last_checkpoint()) is None:
        return "there is no checkpoint yet: a resumed run starts from the beginning"
    return f"the last checkpoint is of step {step_of(found)}: later steps are lost and repeat on resume"


def _once(
    config: RunConfig,
    console: Console,
    ending: Ending,
    claim_directory: Callable[[RunConfig], None],
    stop: StopRequest,
    *,
    may_fail: bool,
) -> bool:
    """Trains to the end. Returns False if trainers on Ray were lost and it `may_fail`: the caller then restarts from
    the last checkpoint. Calls `claim_directory` after the data are checked."""
    from dojang.build import assemble
    from dojang.build.prompt_lengths import describe_dropped, describe_multiple_answers

    on_ray = config.runtime.name == "ray"
    if on_ray:
        _exit_on_signal()
    config.loop.check_address()
    prepared = assemble.prepare(config)  # before the directory is made: an error leaves none behind
    config = prepared.config
    ending = replace(ending, steps=config.steps, dropped=prepared.dropped)
    if config.data.filter_multiple_answers:
        console.print(describe_multiple_answers(prepared.multiple_answers), highlight=False, soft_wrap=True)
        ending = replace(ending, multiple_answers=prepared.multiple_answers)
    if any(prepared.dropped.values()):
        said = describe_dropped(list(prepared.dropped.items()))
        console.print(f"overlong prompts left out: {said}", highlight=False, soft_wrap=True)
    if on_ray:
        _exit_on_signal()  # Ray replaced the signal handlers
    with closing(_open_trackers(config, console, ending)) as exporters:
        claim_directory(config)
        try:
            _train(config, prepared, console, ending, exporters, stop, may_fail=may_fail)
        except RanksLost as error:
            if not may_fail:
                raise
            asyncio.run(prepared.judge.close())  # the loop, which closes it, may not have started
            console.print(f"{error}; restarting from the last checkpoint", highlight=False, soft_wrap=True)
            return False
    return True


def _open_trackers(config: RunConfig, console: Console, ending: Ending, *, live: bool = True) -> "Exporters":
    later = shlex.join([*_program(), "track", str(ending.directory.path)])
    on_ray = config.runtime.name == "ray"
    say = console_printer(console)
    return config.track.open(ending.directory, say, later, steps=config.steps, live=live, on_ray=live and on_ray)


def _exit_on_signal() -> None:
    """Exits at once on a stop signal until the loop handles signals. Ray's own handlers would crash the process;
    checkpoints are safe, and Ray's processes end with this one."""

    def leave(number: int, _: object) -> None:
        os.write(2, b"dojang: told to stop during start-up; resume from the last checkpoint if there is one\n")
        os._exit(Interrupted.exit_code)

    for number in STOP_SIGNALS if in_main_thread() else ():
        signal.signal(number, leave)


def _keep_directory(config: RunConfig) -> None:
    """Does nothing: this run has claimed its directory already."""


def dry_run(
    recipe: str,
    overrides: Sequence[str],
    run_dir: Path | None = None,
    *,
    resume: bool = False,
    join: bool = False,
    fit: Fit | None = None,
) -> None:
    """Checks all that a run checks before its first step; prints a description of the run. Raises all errors that it
    finds together. Writes nothing."""
    directory = choose_directory(recipe, run_dir, resume=resume)
    settings = _settings(recipe, overrides, directory, resume=resume, join=join).fitted(fit, process_count())
    config = settings.config
    errors = ErrorList()
    with errors.collect():
        check_directory(directory, config, resume=resume)
        check_usable(directory)
    with errors.collect():
        check_disk_space(config, directory)
    with errors.collect():
        config.track.check_port()
    with errors.collect():
        config.loop.check_address()
    import_build()
    from dojang.runs.dry_run import describe

    text = ""
    with errors.collect():
        text = describe(config)
    errors.raise_if_any()
    sys.stdout.write("\n".join(filter(None, (recipes.to_yaml(config), text, settings.fit_note))) + "\n")


def import_build() -> None:
    """Imports the builder, with torch and transformers. Pauses the garbage collector meanwhile: scanning the hundred
    thousand new objects again and again would take a seventh of the time."""
    if "dojang.build.assemble" in sys.modules:
        return
    gc.disable()
    try:
        with exit_at_once():
            import_module("dojang.build.assemble")
    finally:
        gc.enable()
    gc.freeze()


def _train(
    config: RunConfig,
    prepared: "Prepared",
    console: Console,
    ending: Ending,
    exporters: "Exporters",
    stop: StopRequest,
    *,
    may_fail: bool,
) -> None:
    from dojang.build import assemble
    from dojang.build.vocabulary import write_vocabularies
    from dojang.loop.run_state import State, load_state

    started = time.monotonic()
    directory = ending.directory
    found = directory.last_checkpoint()
    wired = assemble.build(config, prepared, directory, console, first=step_of(found))
    state = load_state(found, wired.health, wired.problem) if found else State()
    directory.rewind(state.step if found else -1, state.evaluated())
    if found:
        asyncio.run(wired.trainer.restore(found))
        console.print(f"resuming after step {state.step}", highlight=False)

    write_vocabularies(directory, {role: tokenizer for role, (tokenizer, _) in prepared.renderers.items()})
    exporters.start()

    def conclude(status: str, error: BaseException | None = None) -> None:
        _ignore_signals()  # a second Ctrl-C must not interrupt the summary
        finish(ending, console, status=status, seconds=state.seconds + time.monotonic() - started, error=error)
        exporters.finish(status, hurry=status != "finished")

    try:
        asyncio.run(_loop(wired, state, prepared.judge, stop, console_printer(console)))
    except BaseException as error:
        if may_fail and isinstance(error, RanksLost):
            raise  # the caller restarts
        with suppress(DojangError):  # a full disk may refuse the summary too; report the first error
            if isinstance(error, Interrupted | KeyboardInterrupt):
                conclude("interrupted")
            else:
                conclude("failed", error)
        if isinstance(error, DojangError):
            raise type(error)(f"{error}\nresume with: {ending.command}") from error
        raise
    conclude("finished")


async def _loop(wired: "Run", state: "State", judge: Judge, request: StopRequest, say: Callable[[str], None]) -> None:
    """Runs the loop; Ctrl-C, SIGTERM, SIGHUP and `request` stop it after a checkpoint."""
    from dojang.loop.train import train

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        if _torchrun():  # torchrun sends it again
            signal.signal(number, signal.SIG_IGN)
        else:
            say("stopping: saving a checkpoint first; Ctrl-C again stops at once")
        stop.set()

    for number in STOP_SIGNALS if in_main_thread() else ():
        loop.add_signal_handler(number, ask_to_stop, number)
    request.connect(loop, stop)
    try:
        await train(wired, state, stop)
    except RanksLost as error:
        if stop.is_set():  # do not restart a run that was told to stop
            raise Interrupted(
                f"stopped, but {error}: steps after the last checkpoint are lost and repeat on resume"
            ) from error
        raise
    finally:
        request.disconnect()
        async with AsyncExitStack() as cleanup:  # closes all of them, even if one fails
            cleanup.callback(wired.tracker.close)
            for each in (judge, wired.trainer, wired.engine, wired.distiller):
                if each is not None:
                    cleanup.push_async_callback(each.close)


def _ignore_signals() -> None:
    for number in STOP_SIGNALS if in_main_thread() else ():
        signal.signal(number, signal.SIG_IGN)


def process_count() -> int:
    """Number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _torchrun() -> list[str]:
    """Command that starts the same number of torchrun processes on this machine; empty for one process."""
    if process_count() == 1:
        return []
    return ["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "dojang"]


def _resume_call(config: RunConfig, directory: RunDir) -> str:
    """Python call that resumes a run with reward functions of this process, which no command can find; else empty."""
    given = [function_name(name) for name in getattr(config.task, "rewards", {}) if in_process(name)]
    return f"dojang.resume({str(directory.path)!r}, reward_funcs=[{', '.join(given)}])" if given else ""


def _program() -> list[str]:
    """Command that calls dojang again: its name if the shell finds it, else as it was called now."""
    if shutil.which("dojang"):
        return ["dojang"]
    called = Path(sys.argv[0])  # a script of the user's, if the Python API was called
    return [os.path.relpath(called)] if called.name == "dojang" else [sys.executable, "-m", "dojang"]
