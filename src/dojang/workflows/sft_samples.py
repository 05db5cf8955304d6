"""SFT samples: rows of a prompt and a completion, rendered by the chat template. Nothing is sampled."""

from dojang.core.errors import DataError
from dojang.types import Completion, Group, Outcome, Problem, Sample, Verdict
from dojang.workflows.chat_renderer import ChatRenderer

__all__ = ["NOT_SAMPLED", "SftWorkflow"]

NOT_SAMPLED = -1
"""Weight version of completions that were not sampled from a policy."""


class SftWorkflow:
    """A Workflow whose group has one sample, the completion of the data row."""

    def __init__(self, renderer: ChatRenderer, column: str) -> None:
        """`column` is the column of the data row with the completion."""
        self._renderer, self._column = renderer, column

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        return Group(problem, prompt_index, (self.sample(problem),))

    def sample(self, problem: Problem) -> Sample:
        """Renders the row. Raises DataError without a completion, TooLong if it exceeds the context length."""
        text = completion_of(problem, self._column)
        prompt, tokens = self._renderer.render_completion(problem.messages, text)
        completion = Completion(tokens, (0.0,) * len(tokens), text, "stop", NOT_SAMPLED)
        return Sample.of(prompt, completion, Verdict(Outcome.ACCEPTED, 1.0, passed=1))


def completion_of(problem: Problem, column: str) -> str:
    text = problem.columns.get(column)
    if not isinstance(text, str) or not text.strip():
        known = ", ".join(list(problem.columns)[:12]) or "no columns"
        raise DataError(
            f"{problem.id}: its row has no completion in the column {column!r}, but {known}; "
            "set algo.completion to the column that has it"
        )
    return text
