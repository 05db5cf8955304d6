"""Commands that look at a run: `dojang show`, `view`, `explain` and `report`."""

from pathlib import Path
from typing import Annotated

import typer

from dojang.commands.option_group import with_options
from dojang.viewer.options import ShowOptions

__all__ = ["explain", "report", "show", "view"]


@with_options(ShowOptions)
def show(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="Directory or s3:// address of a run, also while it trains.")
    ],
    *,
    options: ShowOptions,
) -> None:
    """Print samples of a run: question, answer, outcome, reward, advantage; or how the answers changed (--diff)."""
    from dojang.viewer.show import show as write

    write(run_dir, options)


def view(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN_DIR...", help="Directories of runs, or of several runs; also s3://BUCKET/PREFIX."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than 127.0.0.1 it needs the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes any free one.")] = 0,
    token: Annotated[
        str | None, typer.Option(help="Token that the page asks for. Default: random, none on 127.0.0.1.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Look at runs in a browser: charts, rollouts token by token, problems, timeline. Also while they train."""
    from dojang.viewer.view import view as serve_page

    serve_page(runs, host=host, port=port, token=token, browser=browser)


def explain(
    run_dir: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="Directory or s3:// address of a run, finished or not.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Explain what went well in a run and what did not: evidence, samples, and the settings to change."""
    from dojang.diagnosis.command import explain as write

    write(run_dir, json=as_json)


def report(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="Directory or s3:// address of a run.")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write. Default: RUN_DIR/report.html.", show_default=False)
    ] = None,
) -> None:
    """Write a run as one HTML file to share: verdict, charts, evaluations, samples, settings, environment."""
    from dojang.viewer.report import write_report

    typer.echo(f"report: {write_report(run_dir, output)}")
