"""Subjects of plans, for the tests of this folder."""

from typing import Any

from dojang.config import recipe
from dojang.planning.estimate import Subject
from dojang.planning.shapes import Shape, find_shape
from dojang.planning.tokens_per_step import Lengths

H200_SMOLLM2 = Shape(576, 30, 9, 3, 64, 1536, 49152, 2048, tied=True)
H200_QWEN25 = Shape(896, 24, 14, 2, 64, 4864, 151936, 2048, "qwen2", tied=True)


def subject(name: str = "quickstart", *overrides: str, shape: Shape | None = None, **lengths: Any) -> Subject:
    """A recipe with prompts of 48 tokens and answers as long as they may be, if nothing else is said."""
    config = recipe.load(name, overrides)
    shapes, found = {}, {}
    for role, each in config.roles().items():
        known = shape or find_shape(each.model.name)[0]
        assert known is not None
        shapes[role] = known
        most = each.rollout.max_tokens
        found[role] = Lengths(**{"prompt": 48, "longest_prompt": 48, "answer": most, "longest_answer": most, **lengths})
    return Subject(config, shapes, found, str(getattr(config.task, "language", "") or ""))
