"""Hints for self-distillation: the teacher is the policy itself, with privileged context in the prompt.

The completion keeps the tokens that the student sampled; only the prompt before them changes.
"""

import string
from collections.abc import Mapping, Sequence

from dojang.core.errors import ConfigError, TooLong
from dojang.protocols import Renderer
from dojang.types import Group, Message, Outcome, Problem, Sample

__all__ = ["FIELDS", "Hints", "check_fields", "field_names"]

FIELDS = ("reference", "feedback", "solution")
"""Fields of a hint in addition to the columns of the data row."""


class Hints:
    """Appends a hint to the prompt: the first template whose fields all have a value."""

    def __init__(self, templates: Sequence[str], renderer: Renderer) -> None:
        self._templates, self._renderer = templates, renderer

    def __call__(self, group: Group) -> list[Sample | None]:
        """Returns each sample of a group with the hinted prompt; None if no template applies or it is too long."""
        return [self._hinted(group, sample) for sample in group.samples]

    def messages(self, group: Group, sample: Sample) -> list[Message] | None:
        """Returns the prompt of a sample with its hint; None if no template applies."""
        hint = self._hint(group, sample)
        return with_hint(group.problem.messages, hint) if hint else None

    def _hinted(self, group: Group, sample: Sample) -> Sample | None:
        messages = self.messages(group, sample)
        if messages is None:
            return None
        try:
            return sample.with_prompt(self._renderer.render(messages))
        except TooLong:
            return None

    def _hint(self, group: Group, sample: Sample) -> str:
        values = {**_columns(group.problem), "feedback": sample.verdict.detail, "solution": _solution(group, sample)}
        for template in self._templates:
            if all(values.get(name) for name in field_names(template)):
                return template.format_map(values)
        return ""


def with_hint(messages: Sequence[Message], hint: str) -> list[Message]:
    """Appends the hint to the last message; prepends it to a plain-text prompt, whose end the completion
    continues."""
    *before, last = messages
    if last.role == "text":
        return [Message("text", f"{hint}\n\n"), *messages]
    return [*before, Message(last.role, f"{last.content}\n\n{hint}")]


def field_names(template: str) -> list[str]:
    """Returns the field names of a template. Raises ValueError if it cannot be parsed."""
    try:
        fields = [each[1:] for each in string.Formatter().parse(template) if each[1] is not None]
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces that stand for themselves") from None
    names = [str(name) for name, _, _ in fields]
    if any(form or conversion for _, form, conversion in fields):
        raise ValueError(f"{template!r} formats a field, and all are text already; write its name alone into braces")
    if not all(name.isidentifier() for name in names):
        raise ValueError(f"names of fields go into braces, such as {{reference}}, not {names}")
    return names


def check_fields(templates: Sequence[str], problem: Problem) -> None:
    """Raises ConfigError if a hint names a field that the problem does not have."""
    known = {*FIELDS, *_columns(problem)}
    for template in templates:
        if unknown := [name for name in field_names(template) if name not in known]:
            raise ConfigError(
                f"distillation.hint has {{{unknown[0]}}}, which is neither {', '.join(FIELDS)} nor a column of "
                f"{problem.id}; its columns are: {', '.join(sorted(problem.columns)) or 'none'}"
            )
    if all("reference" in field_names(template) for template in templates) and not _columns(problem)["reference"]:
        raise ConfigError(
            f"distillation.hint has {{reference}}, but the reference of {problem.id} is no text or number; use "
            "{feedback}, {solution} or a column of the row"
        )


def _columns(problem: Problem) -> Mapping[str, str]:
    """Returns the columns and the reference of a problem as text; tests of programs give an empty reference."""
    reference = problem.reference if isinstance(problem.reference, str | int | float) else ""
    columns = {key: "" if value is None else str(value) for key, value in problem.columns.items()}
    return {**columns, "reference": str(reference)}


def _solution(group: Group, sample: Sample) -> str:
    """Returns the text of the first other accepted sample of the group; empty if there is none."""
    others = (each for each in group.samples if each.index != sample.index)
    return next((each.text for each in others if each.verdict.outcome is Outcome.ACCEPTED), "")
