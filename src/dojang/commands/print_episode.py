"""Prints an episode turn by turn. Text of models and environments is escaped and stands behind a bar."""

import typer

from dojang.api.episodes import PlayedEpisode
from dojang.core.safe_text import one_line, safe_text, shorten

__all__ = ["print_episode"]

_BAR = "│ "
_MOST = (4000, 60)
"""Characters and lines of a turn that are printed."""


def print_episode(episode: PlayedEpisode) -> None:
    """Prints the problem, every turn with its reward, and the verdict."""
    typer.echo(f"problem {one_line(episode.problem.id, 120)}")
    number = 0
    for turn in episode.turns:
        number += turn.role == "assistant"
        title = f"reply {number}, reward {turn.reward:g}" if turn.reward is not None else turn.role
        typer.echo(f"\n{title}")
        for line in safe_text(shorten(turn.text, *_MOST)).split("\n"):
            typer.echo(f"{_BAR}{line}")
    if episode.note:
        typer.echo(f"\nnote: {episode.note}", err=True)
    verdict = episode.verdict
    reward = "no reward" if verdict.reward is None else f"reward {verdict.reward:g}"
    detail = f": {one_line(verdict.detail, 400)}" if verdict.detail else ""
    typer.echo(f"\n{verdict.outcome.value}, {reward}{detail}")
