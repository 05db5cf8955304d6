"""Values of overrides: text settings take text as it is written, others YAML."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from dojang.config import recipe as recipes
from dojang.config.overrides import parse_value
from dojang.core.errors import ConfigError
from dojang.data.files import FilesConfig


class Section(BaseModel):
    """A section of settings."""


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "{question}", "{question}"),
        (str, "no", "no"),
        (str, "3", "3"),
        (str, "null", None),
        (Path, "null", None),
        (Literal["off", "on"], "null", None),
        (str, "nullable", "nullable"),
        (str, '"null"', "null"),
        (str, "", ""),
        (str, "a: b # c", "a: b # c"),
        (str, "[unclosed", "[unclosed"),
        (str, '"two\\nlines"', "two\nlines"),
        (str, "'null'", "null"),
        (str, '"quoted" and more', '"quoted" and more'),
        (Annotated[str, Field(min_length=1)], "no", "no"),
        (Path, "2024", "2024"),
        (str | None, "null", None),
        (str | None, "~", None),
        (str | None, "no", "no"),
        (Literal["off", "on"], "off", "off"),
        (Literal["auto"] | int, "4", 4),
        (Literal["auto"] | int, "no", "no"),
        (bool | str, "no", False),
        (str | float, "0.5", 0.5),
        (str | tuple[str, ...], "{x}", "{x}"),
        (str | tuple[str, ...], "[no, 1]", ["no", "1"]),
        (tuple[str, ...], "[no, '#']", ["no", "#"]),
        (tuple[int, ...], "[1, 2]", [1, 2]),
        (str | Section, "{a: 1}", {"a": 1}),
        (dict[str, Any], "{a: no}", {"a": False}),
        (dict[str, Any] | None, "null", None),
        (bool, "no", False),
        (float, "2", 2),
        (None, "no", False),
    ],
)
def test_a_value_is_read_as_its_type_wants(annotation: Any, text: str, value: object) -> None:
    found = parse_value(text, annotation)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("named", [["data.name=files", "data.train=rows"], []])
def test_text_settings_of_a_choice_that_is_named_later(named: list[str]) -> None:
    later = [] if named else ["data.name=files", "data.train=rows"]
    text = r"data.prompt={question} Answer in \boxed{}."
    config = recipes.load("quickstart", [*named, text, "data.system=no", "data.stop=[no]", *later])
    assert config.data == FilesConfig(
        train=Path("rows"), prompt=r"{question} Answer in \boxed{}.", system="no", stop=("no",)
    )


def test_text_settings_deep_in_a_mapping() -> None:
    config = recipes.load("quickstart", ["task.rewards.tags={pattern: x}", "task.rewards.tags.pattern=[0-9]{2}"])
    assert config.model_dump()["task"]["rewards"]["tags"]["pattern"] == "[0-9]{2}"


def test_null_is_no_system_prompt_and_never_the_text() -> None:
    rows = ["data={name: files, train: rows}"]
    assert recipes.load("quickstart", [*rows, "data.system=null"]).data == FilesConfig(train=Path("rows"))
    assert recipes.load("quickstart", [*rows, 'data.system="null"']).model_dump()["data"]["system"] == "null"
    with pytest.raises(ConfigError, match=r"data.answer: .* it is null; leave it out, or quote the text: data.answer="):
        recipes.load("quickstart", [*rows, "data.answer=null"])
    with pytest.raises(ConfigError, match=r"train.schedule: .* but it is null; leave it out$"):
        recipes.load("quickstart", ["train.schedule=null"])
