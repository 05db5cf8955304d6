"""`dojang judge`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dojang.commands.option_group import with_options

__all__ = ["IsolationLevel", "RunOptions", "ServeOptions", "StopAfter", "Tests", "judge"]

judge = typer.Typer(help="Judge programs, serve a judge, or test it.", no_args_is_help=True)


class IsolationLevel(StrEnum):
    """Isolation of judged programs."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    NONE = "none"


class Tests(StrEnum):
    """Tests of a problem to run."""

    PRIVATE = "private"
    PUBLIC = "public"
    ALL = "all"


class StopAfter(StrEnum):
    """Condition after which no further test runs."""

    NEVER = "never"
    TIME_LIMIT = "time_limit"
    FAILURE = "failure"


ISOLATION = typer.Option(help="Isolation of programs; auto takes the strongest available, and never none.")
PACKAGES = typer.Option(metavar="A,B", help="Packages that Python programs may import.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `dojang judge run`."""

    language: Annotated[
        str,
        typer.Option(metavar="NAME", help="Language: cpp17, cpp20 or python3. Default: from the file's suffix."),
    ] = ""
    tests: Annotated[Tests, typer.Option(help="Tests to run; tests not marked as public are private.")] = Tests.PRIVATE
    isolation: Annotated[IsolationLevel, ISOLATION] = IsolationLevel.AUTO
    packages: Annotated[str, PACKAGES] = ""
    stop: Annotated[StopAfter, typer.Option(help="When to skip the remaining tests.")] = StopAfter.NEVER
    as_json: Annotated[bool, typer.Option("--json", help="Print the judgement as one JSON object.")] = False


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `dojang judge serve`."""

    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback needs a token.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8642
    workers: Annotated[int, typer.Option(min=0, help="Number of programs judged at a time; 0 for one per core.")] = 0
    queue: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent requests; more get status 429.")] = 256
    isolation: Annotated[IsolationLevel, ISOLATION] = IsolationLevel.AUTO
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Python interpreter for judged programs. Default: dojang's, without packages."
        ),
    ] = ""
    packages: Annotated[str, PACKAGES] = ""
    token_env: Annotated[
        str, typer.Option(help="Environment variable with the token that clients must send.", metavar="NAME")
    ] = "DOJANG_JUDGE_TOKEN"


@judge.command("run")
@with_options(RunOptions)
def judge_run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Source file of the program; - for standard input.")],
    problem: Annotated[Path, typer.Option(help="JSON file with tests, limits and checker.", metavar="P.json")],
    *,
    options: RunOptions,
) -> None:
    """Judge a program and show the first failing test. Exits with 1 if it is not accepted."""
    from dojang.commands import run_judge

    raise typer.Exit(run_judge.run(file, problem, options))


@judge.command("serve")
@with_options(ServeOptions)
def judge_serve(*, options: ServeOptions) -> None:
    """Serve the judge over HTTP. Ctrl-C or SIGTERM finishes running requests, then stops."""
    from dojang.commands import run_judge

    run_judge.serve(options)


@judge.command("selftest")
def judge_selftest(
    isolation: Annotated[IsolationLevel, ISOLATION] = IsolationLevel.AUTO,
    packages: Annotated[str, PACKAGES] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test the judge of this machine: verdicts, limits and isolation. Exits with 8 if a check fails."""
    from dojang.commands import run_judge

    run_judge.selftest_command(isolation=isolation, packages=packages, as_json=as_json)
