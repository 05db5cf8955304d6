"""The commands that stand by themselves, and how they all begin and end."""

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dojang import __version__
from dojang.commands.cli_data import data
from dojang.commands.cli_judge import judge
from dojang.commands.cli_launch import launch
from dojang.core.errors import ConfigError, DojangError

__all__ = ["app", "main"]

EXIT_CODES = (
    "Exit codes: 0 done, 2 configuration, 3 data, 4 model, 5 run directory, 6 numbers went wrong, "
    "7 rewards cannot teach, 8 the judge failed, 9 a cluster failed, 10 trainers were lost, 130 interrupted; "
    "1 of judge run: judged, and not accepted; 1 of data audit --strict: verifier and data do not agree."
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
app.add_typer(judge, name="judge")
app.add_typer(data, name="data")
app.add_typer(launch, name="launch")


class Precision(StrEnum):
    """What weights can be written as."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT16 = "float16"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _show_keys(wanted: bool) -> None:
    if wanted:
        from dojang.config.key_docs import key_lines

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
    from dojang.runs import training

    if dry_run:
        training.dry_run(recipe, overrides or [])
    else:
        training.run(recipe, overrides or [], run_dir, resume=resume)


@app.command("eval")
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(help="A model's name, a model or adapter directory, or a run: its best checkpoint."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. data.style=plain task.max_tests=50."),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="NAME,...",
            help="gsm8k=DIR, reasoning_gym=GENERATOR+..., arithmetic, functions, tiny_programs, or prepared folders; "
            "not needed with --recipe or for a run, which have a dataset.",
        ),
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            metavar="R", help="Take dataset, task, chat template and rollout settings from a recipe, not from the run."
        ),
    ] = "",
    samples: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is greedy; 1 if there are several samples.", show_default=False)
    ] = None,
    shots: Annotated[str, typer.Option(metavar="N,...", help="Examples to show, for gsm8k: 0,2,4,8.")] = "",
    problems: Annotated[int, typer.Option(min=1, help="How many problems of each dataset: the first so many.")] = 10**9,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of an answer; as the recipe or the run says, else 512.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides every sampled token.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    output: Annotated[
        Path | None, typer.Option(help="A directory for the results; evals/MODEL-N if not given.", show_default=False)
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B",
            help="Compare two evaluations, by their directories, instead; with --output, also a chart.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure a model: accuracy, pass@k, intervals, tiers, outcomes."""
    from dojang.evaluation import cases, command

    if compare is not None:
        command.compare(*compare, output)
        return
    if model is None:
        raise ConfigError("give a MODEL and --data NAME, or --compare A B; `dojang eval --help` says more")
    heat = temperature if temperature is not None else float(samples > 1)
    options = cases.Options(samples, heat, problems, max_tokens, seed, device, dtype)
    command.evaluate(
        model,
        options,
        data=on.split(",") if on else (),
        shots=cases.numbers(shots),
        recipe=recipe,
        overrides=overrides or (),
        output=output,
    )


@app.command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN_DIR_OR_CHECKPOINT", help="A run, or one of its checkpoints.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A directory that is empty or not there yet.")],
    dtype: Annotated[Precision, typer.Option(help="Precision of the weights.")] = Precision.BFLOAT16,
    which: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which checkpoint of a run: best, last or step-000040; best if not given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a model as a plain Hugging Face directory. An adapter is merged into its base model."""
    from dojang.runs.export import export as write

    write(source, output, precision=dtype.value, which=which)


@app.command()
def track(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run that has ended.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Other trackers than the run's own.")
    ] = None,
) -> None:
    """Deliver what trackers of a run have missed. Exits with 1 if they still cannot be told."""
    from dojang.commands.track import deliver

    raise typer.Exit(0 if deliver(run_dir, settings or []) else 1)


@app.command()
def dashboards(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT_DIR", help="Where to; files of before are replaced.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="The exporter of a run; several are allowed. 127.0.0.1:9464 if not given."
        ),
    ] = None,
) -> None:
    """Write a dashboard for Grafana, and alerts and a configuration for Prometheus."""
    from dojang.track.dashboards import write

    write(output, target or ["127.0.0.1:9464"])


@app.command()
def plan(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. train.lr=1e-5.")
    ] = None,
    instance: Annotated[
        str, typer.Option(metavar="TYPE", help="Where it is to run, e.g. p4de.24xlarge; this machine if not given.")
    ] = "",
    nodes: Annotated[int, typer.Option(min=1, help="How many of those.")] = 1,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that learn; one for each GPU, or half with servers.", show_default=False),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Mean tokens of an answer; rollout.max_tokens if not given.", show_default=False),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="USD an hour of one instance, if not the noted one.", show_default=False)
    ] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems whose known answers are graded.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Check settings, data and rewards; estimate memory, time and cost. What cannot work has an exit code."""
    from dojang.planning.command import Asked
    from dojang.planning.command import plan as write

    raise typer.Exit(
        write(recipe, overrides or [], Asked(instance, nodes, ranks, length, price, problems), as_json=as_json)
    )


@app.command()
def doctor() -> None:
    """Say what this machine has, what that means, and what to do about what is missing."""
    from dojang.commands.doctor import examine

    examine()


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which benchmark; an unknown name lists them.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Passed on, e.g. --json or --help.")
    ] = None,
) -> None:
    """Run a benchmark of the source checkout. Each figure is a ratio to a named baseline."""
    from dojang.commands import bench

    bench.run(name, arguments or [])


def main() -> None:
    """Entry point: failures that were foreseen end in a sentence and an exit code, not in a traceback."""
    # Threads that spin while they wait steal the cores from the judge and from other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.stdout is None:  # closed by the caller; what is printed goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- it lives as long as the process
    try:
        app()
    except DojangError as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0" and isinstance(error, ConfigError):  # the first process finds the same, and says it
            time.sleep(3)  # if this one ended first, that one would be ended before it can
            raise SystemExit(error.exit_code) from None
        typer.secho(
            f"dojang: {error}" if rank == "0" else f"dojang (process {rank}): {error}",
            err=True,
            fg=typer.colors.RED if sys.stderr.isatty() else None,
        )
        raise SystemExit(error.exit_code) from None
