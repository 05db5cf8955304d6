"""Commands of docs/environments.md: their settings exist and go together."""

import re
import shlex
from pathlib import Path

import pytest

from dojang.config.recipe import load
from dojang.environments.catalogue import shipped_environments

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"
TRAIN = [
    shlex.split(line)[2:]
    for line in re.findall(r"^    (dojang train .*)$", PAGE.read_text().replace("\\\n", " "), re.MULTILINE)
]


@pytest.mark.parametrize("words", TRAIN, ids=" ".join)
def test_the_settings_of_a_command_go_together(words: list[str]) -> None:
    recipe, *overrides = words
    assert load(recipe, overrides).workflow.is_environment


def test_every_shipped_environment_has_a_command() -> None:
    named = {word.partition("=")[2] for words in TRAIN for word in words if word.startswith("workflow.name=")}
    shipped = {each.name for each in shipped_environments()} - {"agent", "frozen_lake"}
    assert named >= shipped
