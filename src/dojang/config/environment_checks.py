"""Checks of settings that go with an environment, or only with one."""

from collections.abc import Iterator

from dojang.workflows.section import WorkflowSection

__all__ = ["environment_disagreements"]


def environment_disagreements(workflow: WorkflowSection, data: str, task: str, algo: str) -> Iterator[str]:
    """Yields errors of settings that need an environment, and of those that an environment excludes."""
    name = getattr(workflow, "name", "")
    if (data == "agent_tasks") != (name == "terminal") and not (name in ("custom", "agent") and data == "agent_tasks"):
        yield f"workflow.name=terminal and data.name=agent_tasks go together, not {name} with {data}"
    if name == "terminal" and task != "environment":
        yield f"workflow.name=terminal takes rewards from the tasks' verifiers; set task.name=environment, not {task}"
    if not workflow.is_environment:
        if task == "environment":
            yield f"task.name=environment takes rewards from an environment, but workflow.name={name} is none"
        if data == "episodes":
            yield f"data.name=episodes has no prompts: only environments use it, not workflow.name={name}"
        if data == "verifiers":
            yield f"data.name=verifiers has tasks without answers: set workflow.name=verifiers, not {name}"
        return
    if algo == "sft":
        yield f"algo.name=sft samples nothing, so workflow.name={name} cannot be used"
    if workflow.advantage_level == "turn" and algo == "ppo":
        yield "workflow.credit=turn compares turns, but algo.name=ppo takes advantages from a critic; set it to episode"
