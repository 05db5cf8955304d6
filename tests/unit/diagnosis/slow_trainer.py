"""The `dojang` command with a trainer that takes more than a second for every optimizer step."""

import asyncio
from typing import Any

from dojang.commands.main import main
from dojang.trainer.torch_trainer import TorchTrainer

right = TorchTrainer.optim_step


async def optim_step(self: TorchTrainer) -> Any:
    await asyncio.sleep(1.2)
    return await right(self)


if __name__ == "__main__":
    TorchTrainer.optim_step = optim_step  # type: ignore[method-assign]
    main()
