"""`dojang serve`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["serve"]

serve = typer.Typer(help="Serve a model to agents, or rollouts to a run that trains elsewhere.", no_args_is_help=True)


@serve.callback()
def group() -> None:
    """Serve a model to agents, or rollouts to a run that trains elsewhere."""


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


@serve.command("policy")
def policy(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model name, model or adapter directory, or run directory (its best checkpoint)."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings: model.device, model.dtype, rollout.engine.*, ..."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than 127.0.0.1 it needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DOJANG_POLICY_TOKEN",
            help="API key that clients must send. Default: none, on 127.0.0.1 only.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Append finished sessions to DIR/sessions.jsonl.", show_default=False),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Largest number of tokens of a reply. Default: the run's, or 256.",
            show_default=False,
        ),
    ] = None,
    session_timeout_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds without requests after which a session ends.")
    ] = 3600.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
) -> None:
    """Serve a model with the APIs of OpenAI and Anthropic: tools, log-probs, token ids, sessions with rewards.

    Ctrl-C ends it.
    """
    from dojang.commands.serve_policy import PolicyOptions
    from dojang.commands.serve_policy import serve as run

    run(
        model,
        overrides or [],
        PolicyOptions(
            host=host,
            port=port,
            token=token,
            record=record,
            max_tokens=max_tokens,
            session_timeout_s=session_timeout_s,
            seed=seed,
        ),
    )
