"""The command: check what can be checked, reckon the rest, say it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dojang import models
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DojangError
from dojang.planning.advice import Finding, foresee, knobs, together
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.instances import INSTANCES, Instance, find_instance
from dojang.planning.plan_report import Report
from dojang.planning.shapes import KNOWN, find_shape

__all__ = ["Asked", "plan"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a plan."""

    instance: str = ""
    nodes: int = 1
    ranks: int | None = None
    length: int | None = None
    price: float | None = None
    problems: int = 8


def plan(recipe: str, overrides: Sequence[str], asked: Asked, *, as_json: bool) -> int:
    """Print a plan; returns the exit code."""
    found = _plan(recipe, overrides, asked)
    sys.stdout.write(json.dumps(found.as_json()) + "\n" if as_json else "\n".join(found.lines()) + "\n")
    return found.code


def _plan(recipe: str, overrides: Sequence[str], asked: Asked) -> Report:
    config = recipes.load(recipe, overrides)
    instance = find_instance(asked.instance) if asked.instance else None  # a typo is answered before torch is loaded
    if asked.price is not None and instance is None:
        raise ConfigError("--price is for the machine of --instance, and none is given")
    shapes, findings = {}, [Finding("ok", "config", f"{recipe} with {len(overrides)} changes")]
    for role, each in config.roles().items():
        try:
            models.check(each.model.name)
            shapes[role] = find_shape(each.model.name)
        except DojangError as error:
            findings.append(Finding("failed", "model", str(error), error.exit_code))
            shape = KNOWN.get(each.model.name)
            shapes[role] = shape, "the table of known shapes" if shape else "it cannot be found"
    from dojang.planning.checks import check_data  # loads torch

    checked = check_data(config, {role: shape for role, (shape, _) in shapes.items()}, asked.length, asked.problems)
    config = checked.config or config
    findings += [each for each in checked.findings if each.said not in [other.said for other in findings]]
    known = {role: shape for role, (shape, _) in shapes.items() if shape is not None}
    if len(known) < len(shapes):
        return Report(recipe, findings, shapes)
    subject = Subject(config, known, checked.lengths, checked.language)
    chosen = estimate(subject, _machine(instance, asked.price), asked.nodes, asked.ranks)
    findings += foresee(subject, chosen)
    helps = knobs(subject, chosen) if chosen.fit != "yes" else []
    both = together(subject, chosen) if helps and not any(each.fits for each in helps) else None
    return Report(recipe, findings, shapes, chosen, helps, both, _elsewhere(subject, asked))


def _machine(instance: Instance | None, price: float | None) -> Instance:
    if instance is not None:
        return instance.priced(price)
    from dojang.planning.this_machine import this_machine

    return this_machine()


def _elsewhere(subject: Subject, asked: Asked) -> list[Estimate]:
    """On all that is known; where as many processes as were asked for do not fit, on all GPUs."""
    found = []
    for each in INSTANCES.values():
        ranks = asked.ranks if asked.ranks is not None and asked.ranks <= each.gpus * asked.nodes else None
        found.append(estimate(subject, each, asked.nodes, ranks))
    return found
