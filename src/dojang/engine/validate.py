"""Request validation: checks before an engine accepts a request."""

from collections.abc import Sequence

from dojang.core.errors import ModelError
from dojang.types import Sampling

__all__ = ["check_clean", "check_request"]


def check_clean(dirty: str) -> None:
    """Raise RuntimeError if a failed update left the engine's weights inconsistent; `dirty` is the reason."""
    if dirty:
        raise RuntimeError(f"the engine cannot sample until full weights are loaded: {dirty}")


def check_request(prompt: Sequence[int], sampling: Sampling, context: int, vocabulary: int | None) -> None:
    """Raise if the model cannot continue this prompt."""
    if not prompt:
        raise ValueError("a prompt needs at least one token")
    if len(prompt) >= context:
        raise ModelError(
            f"a prompt of {len(prompt)} tokens leaves no tokens to sample in a context of {context}; shorten it"
        )
    for token in (*prompt, *(token for token, _ in sampling.bias)):
        if token < 0 or (vocabulary is not None and token >= vocabulary):
            raise IndexError(
                f"token {token} is outside the model's vocabulary {f'of {vocabulary}' if vocabulary else ''}".rstrip()
            )
