"""`dojang plan`: runs the checks, estimates memory, time and cost, and prints the report."""

import json
import sys
from collections.abc import Sequence

from dojang import models
from dojang.build.preflight import check_packages, engine_support
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.error_list import ErrorList
from dojang.core.errors import ConfigError, DojangError
from dojang.planning.advice import Finding, knobs, predict_problems, together
from dojang.planning.checkpointed_layers import with_layers
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.instances import INSTANCES, Instance, find_instance
from dojang.planning.options import PlanOptions
from dojang.planning.plan_report import Report
from dojang.planning.shapes import KNOWN, find_shape

__all__ = ["PlanOptions", "plan"]


def plan(recipe: str, overrides: Sequence[str], asked: PlanOptions) -> int:
    """Prints a plan and returns the exit code."""
    found = _plan(recipe, overrides, asked)
    sys.stdout.write(json.dumps(found.as_json()) + "\n" if asked.as_json else "\n".join(found.lines()) + "\n")
    return found.code


def _plan(recipe: str, overrides: Sequence[str], asked: PlanOptions) -> Report:
    config = recipes.load(recipe, overrides)
    instance = find_instance(asked.instance) if asked.instance else None  # reports a typo before torch is imported
    if asked.price is not None and instance is None:
        raise ConfigError("--price needs --instance")
    shapes, findings = {}, [Finding("ok", "config", f"{recipe} with {len(overrides)} changes")]
    for role, each in config.roles().items():
        try:
            described = models.check(each.model.name)
            if models.local(each.model.name) is None and models.read_config(each.model.name) is not None:
                findings.append(Finding("note", "model", described))
            shapes[role] = find_shape(each.model.name, torch_engine=each.rollout.engine.copies_trainer)
            found = engine_support(each.model.name)
            if found is not None and found.engine == "generate" and each.rollout.engine.copies_trainer:
                findings.append(Finding("warning", "engine", f"{found.message}; times are not estimated for it"))
        except DojangError as error:
            findings.append(Finding("failed", "model", str(error), error.exit_code))
            shape = KNOWN.get(each.model.name)
            shapes[role] = shape, "the table of known shapes" if shape else "it cannot be found"
    findings += _packages(config, here=instance is None)
    from dojang.planning.checks import check_data  # loads torch

    checked = check_data(config, {role: shape for role, (shape, _) in shapes.items()}, asked.length, asked.problems)
    config = checked.config or config
    findings += [each for each in checked.findings if each.said not in [other.said for other in findings]]
    known = {role: shape for role, (shape, _) in shapes.items() if shape is not None}
    if len(known) < len(shapes):
        return Report(recipe, findings, shapes)
    idle = dict.fromkeys(known, asked.zero_variance)
    as_asked = subject = Subject(config, known, checked.lengths, checked.language, idle)
    machine = _machine(instance, asked.price)
    subject = with_layers(subject, lambda each: estimate(each, machine, asked.nodes, asked.ranks))
    if subject is not as_asked:
        said = f"train.gradient_checkpointing=auto: {subject.config.train.gradient_checkpointing} layers"
        findings.append(Finding("note", "memory", said))
    chosen = estimate(subject, machine, asked.nodes, asked.ranks)
    findings += predict_problems(subject, chosen)
    helps = knobs(subject, chosen) if chosen.fit != "yes" else []
    both = together(subject, chosen) if helps and not any(each.fits for each in helps) else None
    return Report(recipe, findings, shapes, chosen, helps, both, _elsewhere(as_asked, asked))


def _packages(config: RunConfig, *, here: bool) -> list[Finding]:
    """Packages that are missing: an error if the run is planned for this machine."""
    errors = ErrorList()
    with errors.collect():
        check_packages(config)
    if here:
        return [Finding("failed", "packages", str(each), each.exit_code) for each in errors.errors]
    return [Finding("note", "packages", f"{each} (on the instance)") for each in errors.errors]


def _machine(instance: Instance | None, price: float | None) -> Instance:
    if instance is not None:
        return instance.priced(price)
    from dojang.planning.this_machine import this_machine

    return this_machine()


def _elsewhere(subject: Subject, asked: PlanOptions) -> list[Estimate]:
    """Estimates on all known instances; uses all GPUs if --ranks exceeds them."""
    found = []
    for each in INSTANCES.values():
        ranks = asked.ranks if asked.ranks is not None and asked.ranks <= each.gpus * asked.nodes else None
        found.append(estimate(subject, each, asked.nodes, ranks))
    return found
