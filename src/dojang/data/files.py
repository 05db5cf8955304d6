"""Custom rows: a template or a column makes the prompt, a column has the reference answer."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import field_validator

from dojang.data.file_section import FileSection
from dojang.data.messages import to_messages, with_system
from dojang.data.rows import from_row
from dojang.types import Message, Problem

__all__ = ["FilesConfig"]

_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")


class FilesConfig(FileSection):
    """Custom rows from files, S3 or the Hugging Face hub."""

    name: Literal["files"] = "files"
    prompt: str = ""
    """Prompt template, with column names in braces. Other braces stay as they are; {{name}} is {name}, no column. A
    template of one column, such as {prompt}, may name a column of messages {role, content}. Empty: the column prompt,
    or else question; veRL's rows are read as they are."""
    system: str | None = None
    """System prompt of rows whose messages have none; null: no system prompt."""
    answer: str = "answer"
    """Column with the reference answer. For task.name=code, an object with `private` tests. Empty: no reference."""
    id: str = ""
    """Column with problem ids; empty: file name and row number."""
    tier: str = ""
    """Column with the tier of a row, for separate scores."""
    source: str = "files"
    """Name of the data source in metrics."""

    @field_validator("prompt")
    @classmethod
    def _is_template(cls, prompt: str) -> str:
        if prompt and not any(match[1] for match in _BRACES.finditer(prompt)):
            raise ValueError("the template needs at least one column name in braces, such as {question}")
        return prompt

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        try:
            if not self.prompt and "reward_model" in row:
                made = from_row(row, where)
                return replace(made, messages=with_system(self.system, made.messages))
            reference = _reference(row[self.answer]) if self.answer else None
            return Problem(
                id=str(row[self.id]) if self.id else f"{self.source}/{where}",
                source=self.source,
                messages=with_system(self.system, self._messages(row)),
                reference=reference,
                tier=str(row[self.tier]) if self.tier else "",
                # Do not keep a reference that was parsed from JSON twice.
                columns={key: value for key, value in row.items() if key != self.answer or value is reference},
            )
        except KeyError as error:
            raise ValueError(
                f"the row has no column {error}, only {', '.join(map(str, list(row)[:12]))}; set data.prompt, "
                "data.answer, data.id and data.tier to its columns"
            ) from None

    def _messages(self, row: Mapping[str, Any]) -> tuple[Message, ...]:
        template = self.prompt or ("{prompt}" if "prompt" in row else "{question}")
        column = _BRACES.fullmatch(template)
        if column and column[1] and not isinstance(row[column[1]], str | int | float):
            messages = to_messages(row[column[1]])
        else:
            messages = (Message("user", _fill(template, row)),)
        if not messages or messages[-1].role != "user":
            last = f"ends with a message of the {messages[-1].role}" if messages else "has no messages"
            raise ValueError(f"the prompt {last}; its last message must be the user's")
        return messages


def _fill(template: str, row: Mapping[str, Any]) -> str:
    """Puts columns into the template. Braces around anything but a name stay, as in \\boxed{} and {"answer": 1}."""
    return _BRACES.sub(lambda match: str(row[match[1]]) if match[1] else match[0][0], template)


def _reference(answer: Any) -> Any:
    """Parses an object written as JSON, as in a CSV file."""
    if isinstance(answer, str) and answer.startswith("{"):
        try:
            return json.loads(answer)
        except ValueError:  # a set, in mathematics
            return answer
    return answer
