"""`dojang env`."""

from typing import Annotated

import typer

__all__ = ["env"]

env = typer.Typer(help="List the shipped environments, and try one.", no_args_is_help=True)


@env.command("list")
def env_list() -> None:
    """List the environments that workflow.name selects, and what each needs."""
    from dojang.environments.catalogue import shipped_environments

    found = shipped_environments()
    width = max(len(each.name) for each in found)
    for each in found:
        typer.echo(f"{each.name:<{width}}  {each.description}\n{'':<{width}}  needs {each.needs}")


@env.command("try")
def env_try(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Environment, as `dojang env list` names it.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of the environment, e.g. max_turns=3, or of a recipe, e.g. data.name=gsm8k.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model that plays: name, hub id, directory or run.")] = "dojang-tiny",
    seed: Annotated[int, typer.Option(min=0, help="Selects the problem and the random numbers.")] = 0,
    make_with: Annotated[
        str, typer.Option(metavar="MODULE:CLASS", help="Class of a custom environment.", show_default=False)
    ] = "",
) -> None:
    """Play one episode with a model, and print the conversation with the rewards of each turn. Exit code 1 if the
    environment fails."""
    from dojang.api.episodes import play_episode
    from dojang.commands.print_episode import print_episode
    from dojang.types import Outcome

    overrides = [each if "." in each.partition("=")[0] else f"workflow.{each}" for each in settings or []]
    workflow = {"name": name, **({"make_with": make_with} if make_with else {})}
    episode = play_episode(workflow, model=model, seed=seed, overrides=overrides)
    print_episode(episode)
    if episode.verdict.outcome is Outcome.JUDGE_ERROR:
        raise typer.Exit(1)
