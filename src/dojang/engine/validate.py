"""Which requests an engine refuses before it does anything about them."""

from collections.abc import Iterable, Sequence

from dojang.core.errors import ModelError
from dojang.types import Sampling

__all__ = ["check_clean", "check_request"]


def check_clean(dirty: str) -> None:
    """RuntimeError if an engine's weights are not what anybody meant, for this reason."""
    if dirty:
        raise RuntimeError(f"the engine cannot draw until whole weights have been loaded: {dirty}")


def check_request(
    prompt: Sequence[int], sampling: Sampling, context: int, vocabulary: int | None, past: Iterable[int] = ()
) -> None:
    """Raise if the model cannot go on from this prompt. `past` are further tokens it is to read."""
    if not prompt:
        raise ValueError("a prompt needs at least one token")
    if len(prompt) >= context:
        raise ModelError(f"a prompt of {len(prompt)} tokens leaves no room in a context of {context}; shorten it")
    for token in (*prompt, *past, *(token for token, _ in sampling.bias)):
        if token < 0 or (vocabulary is not None and token >= vocabulary):
            raise IndexError(f"token {token} is not one of the model's {vocabulary or ''}".rstrip())
