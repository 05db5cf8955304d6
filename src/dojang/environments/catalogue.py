"""The shipped environments: name, description, needs, and problems to try them with."""

from dataclasses import dataclass
from typing import Any, get_args

from dojang.environments.config import EnvironmentConfig

__all__ = ["ShippedEnvironment", "shipped_environments", "trial_data"]

_TOOLS = "a model whose chat template has tools"
_NEEDS = {
    "agent": "workflow.make_with or workflow.command",
    "calculator": _TOOLS,
    "custom": "workflow.make_with",
    "frozen_lake": "data.name=episodes",
    "openenv": "data.name=episodes; workflow.urls or workflow.app; workflow.python with the package openenv",
    "python_tool": f"{_TOOLS}, or call_format=code_block; a machine that judges programs (dojang judge selftest)",
    "repair": "task.name=code",
    "search": f"{_TOOLS}; workflow.corpus",
    "skyrl_gym": "workflow.python with the package skyrl-gym",
    "terminal": f"{_TOOLS}; data.name=agent_tasks; Linux with namespaces (dojang doctor)",
    "textarena": "data.name=episodes; workflow.python with the package textarena",
    "verifiers": "data.name=verifiers with data.taskset.id; data.python with the package verifiers",
}
_TRIAL_DATA = {
    "custom": "episodes",
    "frozen_lake": "episodes",
    "openenv": "episodes",
    "repair": "functions",
    "terminal": "agent_tasks",
    "textarena": "episodes",
    "verifiers": "verifiers",
}


@dataclass(frozen=True, slots=True)
class ShippedEnvironment:
    """An environment that `workflow.name` selects."""

    name: str
    description: str
    needs: str
    """Settings, packages and kind of model that it cannot do without."""


def shipped_environments() -> list[ShippedEnvironment]:
    """Returns all environments, by name."""
    found = []
    for section in get_args(EnvironmentConfig):
        name: Any = section.model_fields["name"].default
        description = (section.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        found.append(ShippedEnvironment(name, description, _NEEDS.get(name, "a task")))
    return sorted(found, key=lambda each: each.name)


def trial_data(name: str) -> str:
    """Returns the dataset that `dojang env try` uses for an environment."""
    return _TRIAL_DATA.get(name, "arithmetic")
