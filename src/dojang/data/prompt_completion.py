"""Rows of a prompt and a completion, for supervised fine-tuning, in the formats that users of TRL and veRL have.

{"prompt": TEXT or [{role, content}], "completion": TEXT or [{role: assistant, content}]}
{"messages": [{role, content}, ..., {role: assistant, content}]}       the last turn is the completion
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.rows import share_of
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["PromptCompletionConfig"]

_ROLES = ("system", "user", "assistant")


class PromptCompletionConfig(DataSection):
    """Files of prompts and completions: JSON lines, JSON, CSV or Parquet."""

    name: Literal["prompt_completion"] = "prompt_completion"
    train: Path
    """Path to a file, or to a directory of files."""
    test: Path | None = None
    """Path to the held-out rows; without it some of the training rows are held out (held_out)."""
    held_out: float = Field(default=0.05, gt=0, lt=1)
    """Share of the training rows that is held out where there is no test file."""
    prompt: str = "prompt"
    """Column with the prompt: text, or a list of messages {role, content}."""
    completion: str = "completion"
    """Column with the completion: text, or a list with one message of the assistant."""
    messages: str = "messages"
    """Column with a whole conversation, used where a row has no prompt column; its last turn is the completion."""
    source: str = "prompt_completion"
    """Data source under which evaluations are reported."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer in evaluations."""

    def read(self, split: str) -> list[Problem]:
        """Rows of the `train` or `test` split, in the order of the files."""
        if split not in ("train", "test"):
            raise DataError(f"prompt_completion has no split {split!r}; use 'train' or 'test'")
        if self.test is not None:
            return self._read(self.train if split == "train" else self.test)
        rows = self._read(self.train)
        chosen = [each for each in rows if (share_of(each.id) < self.held_out) == (split == "test")]
        if not chosen:
            raise DataError(
                f"data.held_out={self.held_out:g} of the {len(rows):,} rows of {self.train} leaves none for the "
                f"{split} split; change data.held_out or set data.test to a file"
            )
        return chosen

    def _read(self, path: Path) -> list[Problem]:
        from dojang.data.readers import find  # not before there is something to read

        rows = [
            self._problem(row, f"{file.name}/{number}")
            for file in find(str(path.resolve()))
            for number, row in file.rows()
        ]
        if not rows:
            raise DataError(f"{path} holds no rows")
        return rows

    def _problem(self, row: Mapping[str, Any], where: str) -> Problem:
        try:
            if row.get(self.prompt) is not None:
                messages, completion = _turns(row[self.prompt], "user"), _turns(row[self.completion], "assistant")
            else:
                *messages, last = _turns(row[self.messages], "user")
                completion = [last]
        except KeyError as error:
            raise DataError(
                f"{where}: there is no column {error}, but {', '.join(map(str, list(row)[:12]))}; set data.prompt and "
                "data.completion, or data.messages, to what there is"
            ) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: {error}") from None
        if not messages or len(completion) != 1 or completion[0].role != "assistant":
            raise DataError(
                f"{where}: a row needs a prompt and a completion of one turn by the assistant, which comes last; it "
                f"has the turns {', '.join(message.role for message in (*messages, *completion)) or 'none'}"
            )
        text = completion[0].content
        return Problem(
            id=f"{self.source}/{where}",
            source=self.source,
            messages=tuple(messages),
            reference=text,
            columns={**{key: value for key, value in row.items() if key != self.completion}, "completion": text},
        )


def _turns(value: Any, role: Literal["user", "assistant"]) -> list[Message]:
    """Messages of a column: those it lists, or one of this role with its text."""
    if isinstance(value, str):
        return [Message(role, value)]
    if not isinstance(value, Sequence):
        raise TypeError(f"{str(value)[:60]!r} is neither text nor a list of messages {{role, content}}")
    found = []
    for each in value:
        if each.get("role") not in _ROLES or not isinstance(each.get("content"), str):
            raise ValueError(f"a message needs a role ({', '.join(_ROLES)}) and text as content, not {str(each)[:80]}")
        found.append(Message(each["role"], each["content"]))
    return found
