from dataclasses import dataclass, field
from typing import Annotated

import typer
from typer.testing import CliRunner

from dojang.commands.option_group import with_options


@dataclass
class Fruit:
    name: Annotated[str, typer.Option(help="Name of the fruit.")] = "apple"
    colours: Annotated[list[str], typer.Option("--colour", help="Its colour.")] = field(default_factory=list)


def test_fields_of_a_dataclass_are_options_of_the_command() -> None:
    app = typer.Typer()
    eaten: list[object] = []

    @app.command()
    @with_options(Fruit)
    def eat(who: str, *, options: Fruit, slowly: bool = False) -> None:
        """Eat a fruit."""
        eaten.append((who, options, slowly))

    runner = CliRunner()
    assert runner.invoke(app, ["ann"]).exit_code == 0
    assert (
        runner.invoke(app, ["bob", "--name", "pear", "--colour", "red", "--colour", "green", "--slowly"]).exit_code == 0
    )
    assert eaten == [("ann", Fruit(), False), ("bob", Fruit("pear", ["red", "green"]), True)]
    shown = runner.invoke(app, ["--help"]).output
    assert "Eat a fruit." in shown
    assert "Name of the fruit." in shown
