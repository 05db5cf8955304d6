"""`dojang data`."""

from pathlib import Path
from typing import Annotated

import typer

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
def data_audit(
    name: Annotated[
        str, typer.Argument(metavar="DATA", help="Directory of prepared rows, or a dataset's name with --input.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of data, task and judge, e.g. task.tests=all."),
    ] = None,
    where: Annotated[
        str,
        typer.Option("--input", metavar="PATH", help="Published dataset; for prepared rows, the source of solutions."),
    ] = "",
    task: Annotated[
        str, typer.Option(metavar="NAME", help="Task: code, maths or answer_line. Default: from the data.")
    ] = "",
    split: Annotated[str, typer.Option(metavar="NAME", help="Split: train, validation or test. Default: all.")] = "",
    problems: Annotated[
        int, typer.Option(min=1, help="Maximum number of problems. Default: all.", show_default=False)
    ] = 10**9,
    solutions: Annotated[int, typer.Option(min=0, help="Number of known-good answers to grade per problem.")] = 3,
    mutants: Annotated[int, typer.Option(min=0, help="Number of mutated programs to judge per problem.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Number of times to judge each answer.")] = 2,
    min_tests: Annotated[int, typer.Option(min=0, help="Report problems with fewer tests than this.")] = 5,
    guess: Annotated[
        float, typer.Option(min=0, max=1, help="Report if a trivial program passes at least this fraction of tests.")
    ] = 0.7,
    slow: Annotated[
        float, typer.Option(min=0, max=1, help="Report solutions slower than this fraction of the time limit.")
    ] = 0.5,
    against: Annotated[
        str,
        typer.Option(metavar="DATA", help="Evaluation set to check for overlap: prepared rows, or NAME=PATH."),
    ] = "",
    ngram: Annotated[int, typer.Option(min=2, help="Length of the compared n-grams in words.")] = 13,
    overlap: Annotated[
        float, typer.Option(min=0, max=1, help="Report an overlap from this fraction of n-grams.")
    ] = 0.3,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the report. Default: audits/NAME-N.", show_default=False)
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Write the problems without findings of --exclude to this directory.", show_default=False),
    ] = None,
    exclude: Annotated[
        str,
        typer.Option(
            metavar="FINDING,...", help="Findings that keep a problem out of --keep. Default: listed in docs/data.md."
        ),
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if verifier and data disagree.")] = False,
) -> None:
    """Check that the verifier agrees with the data: it accepts known-good answers and rejects others."""
    from dojang.audit import command
    from dojang.audit.findings import DEFAULT_EXCLUDED, AuditSettings

    options = command.AuditOptions(
        place=where,
        task=task,
        overrides=settings or [],
        split=split,
        problems=problems,
        settings=AuditSettings(solutions, mutants, repeats, min_tests, guess, slow),
        against=against,
        ngram=ngram,
        overlap=overlap,
        output=output,
        keep=keep,
        exclude=exclude.split(",") if exclude else DEFAULT_EXCLUDED,
        strict=strict,
    )
    raise typer.Exit(command.audit(name, options))
