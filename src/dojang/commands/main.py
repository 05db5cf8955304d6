"""The `dojang` command: its subcommands, exit codes and error output."""

import logging
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dojang import __version__
from dojang.commands.cli_data import data
from dojang.commands.cli_env import env
from dojang.commands.cli_judge import judge
from dojang.commands.cli_launch import launch
from dojang.commands.cli_look import explain, report, show, view
from dojang.commands.cli_serve import serve
from dojang.commands.option_group import Overrides, Recipe, with_options
from dojang.core import interrupt
from dojang.core.errors import ConfigError, DojangError, Interrupted, RunDirError
from dojang.evaluation.options import Options as EvalOptions
from dojang.planning.options import PlanOptions

__all__ = ["app", "main"]

EXIT_CODES = (
    "Exit codes: 0 success, 2 configuration, 3 data, 4 model, 5 run directory, 6 loss not finite, "
    "7 rewards without a training signal, 8 the judge failed, 9 the cluster failed, 10 trainers were lost, "
    "130 interrupted; 1 from judge run: not accepted; 1 from data audit --strict: verifier and data disagree."
)


class _Commands(TyperGroup):
    """Reports Ctrl-C as an error of dojang. Typer would exit without a message, before 0.29 with code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None


app = typer.Typer(
    name="dojang",
    cls=_Commands,
    help="Train language models by reinforcement learning with verifiable rewards.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(judge, name="judge")
app.add_typer(data, name="data")
app.add_typer(env, name="env")
app.add_typer(launch, name="launch")
app.add_typer(serve, name="serve")


class Precision(StrEnum):
    """Dtypes of exported weights."""

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


def _recipes() -> str:
    from dojang.config.recipe import listing

    return f"give a recipe, or the path of a .yaml file: dojang train RECIPE [KEY=VALUE]...\nRecipes:\n{listing()}"


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train language models by reinforcement learning with verifiable rewards."""
    if context.invoked_subcommand not in ("train", "resume"):  # they handle signals themselves once they train
        interrupt.release()


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or a YAML file. Without it: list all."),
    ] = None,
    overrides: Overrides = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run directory. Default: runs/RECIPE-N.", show_default=False)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in --run-dir; without one, the newest run of the recipe."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check settings, packages, models, data, rewards and the run directory; train nothing."
        ),
    ] = False,
    print_join: Annotated[
        bool,
        typer.Option(
            "--print-join",
            help="Let rollout workers of other machines join (loop.mode=stream), and print the command for them.",
        ),
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", callback=_show_keys, is_eager=True, help="List every setting and exit.")
    ] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint and prints the command to resume."""
    if recipe is None:
        raise ConfigError(_recipes())
    from dojang.planning.checkpointed_layers import resolve_for_this_machine
    from dojang.runs import training

    if dry_run:
        training.dry_run(recipe, overrides or [], run_dir, resume=resume, join=print_join, fit=resolve_for_this_machine)
    else:
        training.run(recipe, overrides or [], run_dir, resume=resume, join=print_join, fit=resolve_for_this_machine)


@app.command()
def resume(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of the run.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. steps=200.")
    ] = None,
) -> None:
    """Resume a run from its last checkpoint, with its own settings (RUN_DIR/config.yaml). Prints every change."""
    from dojang.planning.checkpointed_layers import resolve_for_this_machine
    from dojang.runs import training

    training.resume(run_dir, overrides or [], resolve_for_this_machine)


@app.command("eval")
@with_options(EvalOptions)
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Model name, model or adapter directory, or run directory (its best checkpoint). Default: "
            "that of --recipe.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to override, e.g. data.style=plain task.max_tests=50."),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="NAME,...",
            help="Datasets: gsm8k=DIR, reasoning_gym=GENERATOR+..., arithmetic, functions, tiny_programs, files of "
            "rows (my.jsonl), or prepared folders. Default: the dataset of the recipe or the run.",
        ),
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",  # named: typer before 0.29 takes a metavar of the same letters for the name
            metavar="RECIPE",
            help="Recipe with the dataset, task, chat template and rollout settings. Default: the run's.",
        ),
    ] = "",
    shots: Annotated[str, typer.Option(metavar="N,...", help="Numbers of few-shot examples, for gsm8k: 0,2,4,8.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            help="Directory for the samples and results. Default: runs/eval-MODEL-N.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted evaluation in --output.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B",
            help="Compare the results in two directories instead; with --output, also as a chart.",
            show_default=False,
        ),
    ] = None,
    *,
    options: EvalOptions,
) -> None:
    """Evaluate a model: accuracy, pass@k, confidence intervals, difficulty tiers, outcomes."""
    from dojang.evaluation import cases, command

    if compare is not None:
        command.compare(*compare, output)
        return
    if model is not None and cases.is_setting(model):  # the first argument is MODEL, which was left out
        overrides = [model, *(overrides or [])]
        model = None
    if model is None and not recipe:
        raise ConfigError(
            "give a MODEL and --data NAME or FILE, or --recipe RECIPE, or --compare A B; see `dojang eval --help`"
        )
    command.run(
        model or cases.model_of(recipe, overrides or ()),
        options,
        data=on.split(",") if on else (),
        shots=cases.numbers(shots),
        recipe=recipe,
        overrides=overrides or (),
        output=output,
        resume=resume,
    )


for look in (show, view, explain, report):
    app.command()(look)


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_DIR_OR_CHECKPOINT", help="Run directory, or one of its checkpoints.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Empty or new directory.")],
    dtype: Annotated[Precision, typer.Option(help="Dtype of the weights.")] = Precision.BFLOAT16,
    which: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Checkpoint of a run: best, last or step-000040. Default: best.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a model as a Hugging Face directory. Merges a LoRA adapter into its base model."""
    from dojang.runs.export import export as write

    write(source, output, precision=dtype.value, which=which)


@app.command()
def track(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run that has ended.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Tracker settings to override, e.g. track.mlflow.uri=http://HOST:5000."
        ),
    ] = None,
) -> None:
    """Send a run's remaining metrics to its trackers. Exits with 1 if one still cannot be reached."""
    from dojang.commands.track import deliver

    raise typer.Exit(0 if deliver(run_dir, settings or []) else 1)


@app.command()
def dashboards(
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT_DIR", help="Output directory; existing files are replaced.")
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Prometheus exporter of a run; repeatable. Default: 127.0.0.1:9464."),
    ] = None,
) -> None:
    """Write a Grafana dashboard, Prometheus alerts and a Prometheus configuration."""
    from dojang.track.dashboards import write

    write(output, target or ["127.0.0.1:9464"])


@app.command()
@with_options(PlanOptions)
def plan(recipe: Recipe, overrides: Overrides = None, *, options: PlanOptions) -> None:
    """Check settings, data and rewards; estimate memory, time and cost. Exits with 0 only if a run would start."""
    from dojang.planning.command import plan as write

    raise typer.Exit(write(recipe, overrides or [], options))


@app.command()
def doctor() -> None:
    """Check this machine (hardware, packages, isolation for the judge), and say what to install or change."""
    from dojang.commands.doctor import examine

    examine()


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a benchmark. Without it: list the benchmarks.")
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the benchmark, e.g. --json or --help.")
    ] = None,
) -> None:
    """Run a benchmark of the source checkout. Each result is a ratio to a named baseline."""
    from dojang.commands import bench

    bench.run(name, arguments or [])


def main() -> None:
    """Entry point: prints a DojangError as one message and exits with its code, without a traceback."""
    # Spinning OpenMP threads would take cores from the judge and from other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.stdout is None:  # closed by the caller: discard output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- it lives as long as the process
    if cache := os.environ.get("DOJANG_CACHE"):  # for a HOME that cannot be written
        os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(os.path.abspath(cache), "triton"))
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(os.path.abspath(cache), "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no notice about its cache in such a HOME
    if not sys.flags.safe_path:  # your own modules, as with `python -m dojang`
        sys.path.append(os.path.abspath(os.curdir))
    try:
        app()
    except DojangError as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0" and isinstance(error, ConfigError | RunDirError):  # rank 0 finds the same error and reports it
            time.sleep(3)  # ending first would make torchrun kill rank 0 before its report
            raise SystemExit(error.exit_code) from None
        typer.secho(
            f"dojang: {error}" if rank == "0" else f"dojang (process {rank}): {error}",
            err=True,
            fg=typer.colors.RED if sys.stderr.isatty() else None,
        )
        raise SystemExit(error.exit_code) from None
    finally:
        interrupt.restore()  # Ctrl-C while Python shuts down
