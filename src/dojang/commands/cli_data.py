"""`dojang data`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["data"]

data = typer.Typer(help="Prepare and audit datasets.", no_args_is_help=True)


@data.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(help="Which dataset; an unknown name lists all there are.")],
    where: Annotated[
        str,
        typer.Option(
            "--input", metavar="PLACE", help="A file, a directory, s3://..., or on the hub org/name or org/name/subset."
        ),
    ],
    output: Annotated[Path, typer.Option(help="A directory that is not there yet, or holds what was interrupted.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the dataset, e.g. tiers=[easy].")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the training problems that becomes the test split.")
    ] = 0.0,
    subset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Read only this directory of the dataset, e.g. primeintellect; repeatable."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="An evaluation set whose problems must not be trained on: prepared rows, or NAME=PLACE; repeatable.",
        ),
    ] = None,
    keep_overlap: Annotated[
        bool, typer.Option("--keep-overlap", help="Keep training problems that held-out sets have, too; only report.")
    ] = False,
) -> None:
    """Write a dataset as Parquet rows to train on. If interrupted, the same command goes on with it.

    Training problems that are also in the test split, or in a set given by --against, are dropped and counted.
    """
    from dojang.build.prepare_dataset import Options, prepare

    options = Options(held_out, subset or (), against or (), keep_overlap)
    prepare(name, where, output, settings or [], options)


@data.command("audit")
def data_audit(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="A directory of prepared rows, or a dataset's name with --input.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of data, task and judge, e.g. task.tests=all."),
    ] = None,
    where: Annotated[
        str,
        typer.Option("--input", metavar="PLACE", help="Where the published dataset is; for prepared rows, solutions."),
    ] = "",
    task: Annotated[str, typer.Option(metavar="NAME", help="code, maths or answer_line, if the data do not say.")] = "",
    split: Annotated[str, typer.Option(metavar="NAME", help="train, validation or test; all if not given.")] = "",
    problems: Annotated[int, typer.Option(min=1, help="How many problems: the first so many.")] = 10**9,
    solutions: Annotated[int, typer.Option(min=0, help="Known-good answers to try of a problem.")] = 3,
    mutants: Annotated[int, typer.Option(min=0, help="Mutated programs to try of a problem.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="How often the same answer is judged.")] = 2,
    min_tests: Annotated[int, typer.Option(min=0, help="Fewer checks than this are few.")] = 5,
    guess: Annotated[
        float, typer.Option(min=0, max=1, help="Share of tests that is many for a program that solves nothing.")
    ] = 0.7,
    slow: Annotated[float, typer.Option(min=0, max=1, help="Share of the time limit that is much.")] = 0.5,
    against: Annotated[
        str,
        typer.Option(metavar="DATA", help="An evaluation set to look for the problems in: a directory, NAME=PLACE."),
    ] = "",
    ngram: Annotated[int, typer.Option(min=2, help="Words of a run that is looked for there.")] = 13,
    overlap: Annotated[float, typer.Option(min=0, max=1, help="Share of runs found there that is told.")] = 0.3,
    output: Annotated[
        Path | None, typer.Option(help="A directory for the report; audits/NAME-N if not given.", show_default=False)
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Write the problems without grave findings there.", show_default=False)
    ] = None,
    exclude: Annotated[
        str, typer.Option(metavar="FINDING,...", help="Which findings are grave; docs/data.md says which, and why.")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if verifier and data do not agree.")] = False,
) -> None:
    """Ask whether the verifier agrees with the data: known-good answers get full marks, others do not."""
    from dojang.audit import command
    from dojang.audit.findings import DEFAULT_EXCLUDED, Thoroughness

    wanted = command.Wanted(
        place=where,
        task=task,
        settings=settings or [],
        split=split,
        problems=problems,
        how=Thoroughness(solutions, mutants, repeats, min_tests, guess, slow),
        against=against,
        ngram=ngram,
        overlap=overlap,
        output=output,
        keep=keep,
        exclude=exclude.split(",") if exclude else DEFAULT_EXCLUDED,
        strict=strict,
    )
    raise typer.Exit(command.audit(name, wanted))
