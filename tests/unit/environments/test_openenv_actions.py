"""Replies of a model as actions of OpenEnv, and settings of its servers."""

import pytest
from pydantic import ValidationError

from dojang.environments.openenv import OpenEnvConfig
from dojang.environments.openenv_sessions import parse_action


def test_replies_become_actions() -> None:
    assert parse_action(" go north ", "move") == {"move": "go north"}
    for text in ('{"x": 1}', '```json\n{"x": 1}\n```', '<think>{"x": 2}?</think>\n{"x": 1}'):
        assert parse_action(text) == {"x": 1}
    with pytest.raises(ValueError, match="no JSON object"):
        parse_action("[1]")
    with pytest.raises(ValueError, match=r"no JSON \("):
        parse_action("x: 1")


def test_settings_of_servers() -> None:
    several = OpenEnvConfig(urls=("http://a:1", "http://b:1"), sessions_per_server=3)
    assert several.limits.max_concurrent == 6
    assert OpenEnvConfig(app="a:b", servers=4).limits.max_concurrent == 4
    for wrong in ({}, {"app": "a:b", "urls": ("http://a:1",)}, {"urls": ("http://a:1",), "servers": 2}):
        with pytest.raises(ValidationError, match=r"workflow\.app"):
            OpenEnvConfig.model_validate(wrong)
