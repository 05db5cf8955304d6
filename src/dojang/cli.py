"""The command line. Parses first; imports what a command needs once it is known which one."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dojang import __version__
from dojang.errors import DojangError

__all__ = ["app", "main"]

EXIT_CODES = (
    "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 run directory, 6 numbers went wrong, "
    "7 rewards cannot teach, 130 interrupted."
)

app = typer.Typer(
    name="dojang",
    help="Train language models by reinforcement learning with verifiable rewards.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _show_keys(wanted: bool) -> None:
    if wanted:
        from dojang.reference import key_lines

        typer.echo("\n".join(key_lines()))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train language models by reinforcement learning with verifiable rewards."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. train.lr=1e-5.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the run is kept; runs/RECIPE-N if not given.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run from its last checkpoint.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the configuration and what would run.")
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", callback=_show_keys, is_eager=True, help="List every setting and exit.")
    ] = False,
) -> None:
    """Train a model. Ctrl-C saves and says how to resume."""
    from dojang import runner

    if dry_run:
        runner.dry_run(recipe, overrides or [])
    else:
        runner.run(recipe, overrides or [], run_dir, resume=resume)


@app.command()
def doctor() -> None:
    """Say what this machine has, what that means, and what to do about what is missing."""
    from dojang.doctor import examine

    examine()


def main() -> None:
    """Entry point: failures that were foreseen end in a sentence and an exit code, not in a traceback."""
    # Threads that spin while they wait steal the cores from the judge and from other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.stdout is None:  # closed by the caller; what is printed goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- it lives as long as the process
    try:
        app()
    except DojangError as error:
        typer.secho(f"dojang: {error}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
        raise SystemExit(error.exit_code) from None
