"""An engine that returns scripted completions, for tests of everything after sampling."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from dojang.types import Completion, Sampling

Script = Callable[[str, int, Sampling], str]


class ScriptedEngine:
    """A RolloutEngine whose completions come from `script(prompt text, sample index, sampling)`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, script: Script) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._version = 0

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        asked = self._tokenizer.decode(list(prompt))
        assert isinstance(asked, str)
        return [self._complete(self._script(asked, index, sampling), sampling) for index in range(n)]

    async def load(self, version: int) -> None:
        self._version = version

    async def close(self) -> None:
        return None

    def _complete(self, text: str, sampling: Sampling) -> Completion:
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        short = len(tokens) < sampling.max_tokens
        tokens = [*tokens, self._tokenizer.eos_token_id] if short else tokens[: sampling.max_tokens]
        written = text if short else self._tokenizer.decode(tokens, skip_special_tokens=True)
        assert isinstance(written, str)
        return Completion(tuple(tokens), (0.0,) * len(tokens), written, "stop" if short else "length", self._version)
