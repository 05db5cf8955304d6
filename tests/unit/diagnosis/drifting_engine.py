"""The `dojang` command with an engine whose log-probs are wrong by 0.1 nats more with every version of the weights.

Before the first step they are right, so the check of engine and trainer passes.
"""

from dataclasses import replace
from typing import Any

from dojang.commands.main import main
from dojang.engine.torch_engine import TorchEngine

right = TorchEngine.generate


async def generate(self: TorchEngine, *arguments: Any) -> Any:
    found = await right(self, *arguments)
    return [replace(each, logprobs=tuple(value - 0.1 * each.version for value in each.logprobs)) for each in found]


if __name__ == "__main__":
    TorchEngine.generate = generate  # type: ignore[method-assign]
    main()
