"""`dojang judge`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Kept", "StopAfter", "Tests", "judge"]

judge = typer.Typer(help="Judge programs, serve a judge, or test it.", no_args_is_help=True)


class Kept(StrEnum):
    """What judged programs can be kept in by."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    NONE = "none"


class Tests(StrEnum):
    """Which tests of a problem."""

    PRIVATE = "private"
    PUBLIC = "public"
    ALL = "all"


class StopAfter(StrEnum):
    """After which test to stop."""

    NEVER = "never"
    TIME_LIMIT = "time_limit"
    FAILURE = "failure"


ISOLATION = typer.Option(help="What keeps programs in; auto takes the strongest there is, and never none.")
PACKAGES = typer.Option(metavar="A,B", help="Packages of the judging interpreter that Python programs may import.")


@judge.command("run")
def judge_run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The program; - reads standard input.")],
    problem: Annotated[Path, typer.Option(help="A JSON file with tests, limits and checker.", metavar="P.json")],
    language: Annotated[
        str,
        typer.Option(metavar="NAME", help="cpp17, cpp20 or python3; guessed from the file's name if not given."),
    ] = "",
    tests: Annotated[Tests, typer.Option(help="Tests not marked as public are private.")] = Tests.PRIVATE,
    isolation: Annotated[Kept, ISOLATION] = Kept.AUTO,
    packages: Annotated[str, PACKAGES] = "",
    stop: Annotated[StopAfter, typer.Option(help="After which test to stop.")] = StopAfter.NEVER,
    as_json: Annotated[bool, typer.Option("--json", help="Print the judgement as one JSON object.")] = False,
) -> None:
    """Judge a program and show the first failing test. Exits with 1 if it is not accepted."""
    from dojang.commands import run_judge

    code = run_judge.run(
        file,
        problem,
        language_name=language,
        tests=tests.value,
        isolation=isolation,
        packages=_listed(packages),
        stop=stop,
        as_json=as_json,
    )
    raise typer.Exit(code)


@judge.command("serve")
def judge_serve(
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8642,
    workers: Annotated[int, typer.Option(min=0, help="Programs judged at a time; 0 is one per core.")] = 0,
    queue: Annotated[int, typer.Option(min=1, help="Requests at a time; more are told to come back later.")] = 256,
    isolation: Annotated[Kept, ISOLATION] = Kept.AUTO,
    python: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Interpreter for judged programs, with its packages; dojang's, bare, if not given."
        ),
    ] = "",
    packages: Annotated[str, PACKAGES] = "",
    token_env: Annotated[
        str, typer.Option(help="Environment variable that holds the token clients must send.", metavar="NAME")
    ] = "DOJANG_JUDGE_TOKEN",
) -> None:
    """Judge for other machines over HTTP. Ctrl-C or SIGTERM finishes what was begun, then ends it."""
    from dojang.commands import run_judge

    run_judge.serve(
        host=host,
        port=port,
        workers=workers,
        queue=queue,
        isolation=isolation,
        python=python,
        packages=_listed(packages),
        token_env=token_env,
    )


@judge.command("selftest")
def judge_selftest(
    isolation: Annotated[Kept, ISOLATION] = Kept.AUTO,
    packages: Annotated[str, PACKAGES] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Try the judge of this machine. Verdicts, limits, and a dozen ways out; exits with 8 if anything fails."""
    from dojang.commands import run_judge

    run_judge.selftest_command(isolation=isolation, packages=_listed(packages), as_json=as_json)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())
