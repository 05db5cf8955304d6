"""Exceptions of the user's code are described by its file and line."""

import json
import sys
from pathlib import Path

import pytest

from dojang.core.errors import ConfigError
from dojang.core.section import make_object
from dojang.core.user_code import describe_exception


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    return tmp_path / "my_rewards.py"


def test_the_last_line_of_the_users_code_is_named(mine: Path) -> None:
    mine.write_text("import json\n\n\ndef parse(text):\n    return json.loads(text)\n")
    with pytest.raises(ConfigError) as caught:
        make_object("my_rewards:parse", "task.make_with", "{")
    assert "calling it raised JSONDecodeError: Expecting property name" in str(caught.value)
    assert str(caught.value).endswith("(my_rewards.py, line 5)")


def test_an_import_that_raises_is_named_by_its_line(mine: Path) -> None:
    mine.write_text("x = 1\ny = {}['missing']\n")
    with pytest.raises(ConfigError, match=r"raised KeyError: 'missing' \(my_rewards.py, line 2\)"):
        make_object("my_rewards:parse", "task.make_with")


def test_without_the_users_code_there_is_no_line() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    error = caught.value
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    assert "decoder.py" not in describe_exception(error)
    assert describe_exception(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert describe_exception(ValueError("x" * 9999)).endswith("xxx...")
