"""`dojang serve`."""

from typing import Annotated

import typer

__all__ = ["serve"]

serve = typer.Typer(help="Serve parts of a run that trains elsewhere.", no_args_is_help=True)


@serve.callback()
def group() -> None:
    """Serve parts of a run that trains elsewhere."""


@serve.command("rollouts")
def rollouts(
    join: Annotated[
        str, typer.Option("--join", metavar="URL", help="Address of the run, as `dojang train --print-join` prints it.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of this machine: data.path, model.name, model.device, tester.model, rollout.engine.*, "
            "judge.*",
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(metavar="S", min=0.0, help="Seconds to wait for a run that does not answer.")
    ] = 600.0,
    shared_gpu: Annotated[
        bool, typer.Option("--shared-gpu", help="Leave GPU memory to a trainer on the same GPU.")
    ] = False,
) -> None:
    """Sample rollouts for a run. The environment variable DOJANG_ROLLOUT_TOKEN must have its token.

    May join and leave at any time. Ctrl-C or SIGTERM finishes and delivers what runs; a second one ends at once.
    """
    from dojang.commands.serve_rollouts import serve as work

    work(join, overrides or [], timeout_s=timeout_s, alone=not shared_gpu)
