"""DeepMath-103K: hard mathematics with answers in LaTeX. Reads the authors' rows, and TRL's."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, ClassVar

from dojang.data.prepare_rows import Dataset, KnownAnswers, Unusable
from dojang.types import Message, Problem

__all__ = ["DeepMath", "make_prompt"]

INSTRUCTION = "Think step by step, and put the final answer into \\boxed{}."


class DeepMath(Dataset):
    """Mathematics, answered in LaTeX."""

    ability: ClassVar[str] = "math"

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        if "question" in row:
            question, answer, level = row["question"], row["final_answer"], row.get("difficulty")
        else:  # TRL's
            question, answer, level = row["prompt"][-1]["content"], row["solution"], None
        question, answer = str(question or "").strip(), str(answer or "").strip().removeprefix("$").removesuffix("$")
        if not question or not answer:
            raise Unusable("its question or its answer is empty")
        name = sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        tier = f"level {float(level):g}" if level is not None and float(level) >= 0 else ""
        return Problem(f"deepmath/{name}", "deepmath", make_prompt(question), answer, tier)

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        """Returns the three model-written solutions of the authors' rows."""
        return KnownAnswers(
            tuple(row[key] for key in ("r1_solution_1", "r1_solution_2", "r1_solution_3") if row.get(key))
        )


def make_prompt(question: str) -> tuple[Message, ...]:
    """Makes the prompt, which asks for the answer in \\boxed{}."""
    return (Message("system", INSTRUCTION), Message("user", question))
