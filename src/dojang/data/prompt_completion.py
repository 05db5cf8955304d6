"""Rows of a prompt and a completion for supervised fine-tuning, in the formats of TRL and veRL.

{"prompt": TEXT or [{role, content}], "completion": TEXT or [{role: assistant, content}]}
{"messages": [{role, content}, ..., {role: assistant, content}]}       the last turn is the completion
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from dojang.data.file_section import FileSection
from dojang.data.messages import to_messages
from dojang.types import Problem

__all__ = ["PromptCompletionConfig"]


class PromptCompletionConfig(FileSection):
    """Prompts and completions from files, S3 or the Hugging Face hub."""

    name: Literal["prompt_completion"] = "prompt_completion"
    held_out: float = Field(default=0.05, gt=0, lt=1)
    prompt: str = "prompt"
    """Column with the prompt: text, or a list of messages {role, content}."""
    completion: str = "completion"
    """Column with the completion: text, or a list with one message of the assistant."""
    messages: str = "messages"
    """Column with a whole conversation, used where a row has no prompt column; its last turn is the completion."""
    source: str = "prompt_completion"
    """Data source under which evaluations are reported."""

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        """Returns the problem of a row, with its completion as the reference."""
        try:
            if row.get(self.prompt) is not None:
                messages, completion = to_messages(row[self.prompt]), to_messages(row[self.completion], "assistant")
            else:
                conversation = to_messages(row[self.messages])
                messages, completion = conversation[:-1], conversation[-1:]
        except KeyError as error:
            raise ValueError(
                f"the row has no column {error}, only {', '.join(map(str, list(row)[:12]))}; set data.prompt and "
                "data.completion, or data.messages, to its columns"
            ) from None
        if not messages or len(completion) != 1 or completion[0].role != "assistant":
            raise ValueError(
                "a row needs a prompt and a completion of one turn by the assistant, which comes last; it has the "
                f"turns {', '.join(message.role for message in (*messages, *completion)) or 'none'}"
            )
        text = completion[0].content
        return Problem(
            id=f"{self.source}/{where}",
            source=self.source,
            messages=messages,
            reference=text,
            columns={**{key: value for key, value in row.items() if key != self.completion}, "completion": text},
        )
