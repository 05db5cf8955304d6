"""`dojang data`."""

from pathlib import Path
from typing import Annotated

import typer

from dojang.audit.options import AuditOptions
from dojang.commands.option_group import with_options

__all__ = ["data"]

DATASETS = (
    *("code-contests", "codeforces", "deepcoder", "deepmath", "gsm8k", "humaneval", "livecodebench", "math500", "mbpp"),
)

data = typer.Typer(help="Prepare and audit datasets.", no_args_is_help=True)


@data.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="DATASET", help=f"One of {', '.join(DATASETS)}.")],
    where: Annotated[
        str,
        typer.Option(
            "--input", metavar="PATH", help="File, directory, s3://..., or org/name[/subset] on the Hugging Face hub."
        ),
    ],
    output: Annotated[Path, typer.Option(help="New directory, or one with an interrupted preparation.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the dataset, e.g. tiers=[easy].")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of the training problems for the test split.")
    ] = 0.0,
    subset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Read only this directory of the dataset, e.g. primeintellect; repeatable."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="Evaluation set whose problems are dropped from training: prepared rows, or NAME=PATH; repeatable.",
        ),
    ] = None,
    keep_overlap: Annotated[
        bool,
        typer.Option("--keep-overlap", help="Report training problems that are also in held-out sets, but keep them."),
    ] = False,
) -> None:
    """Write a dataset as Parquet rows for training. After an interruption, the same command continues.

    Training problems that are also in the test split, or in a set of --against, are dropped and counted.
    """
    from dojang.build.prepare_dataset import Options, prepare

    options = Options(held_out, subset or (), against or (), keep_overlap)
    prepare(name, where, output, settings or [], options)


@data.command("audit")
@with_options(AuditOptions)
def data_audit(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="Directory of prepared rows, or a dataset's name with --input.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of data, task and judge, e.g. task.tests=all."),
    ] = None,
    *,
    options: AuditOptions,
) -> None:
    """Check that the verifier agrees with the data: it accepts known-good answers and rejects others."""
    from dojang.audit import command

    raise typer.Exit(command.audit(name, settings or [], options))
