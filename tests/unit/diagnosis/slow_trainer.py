"""The `dojang` command with a trainer that takes at least a second for an update of eight optimizer steps."""

import asyncio
from typing import Any

from dojang.commands.main import main
from dojang.trainer.torch_trainer import TorchTrainer

right = TorchTrainer.optim_step


async def optim_step(self: TorchTrainer) -> Any:
    await asyncio.sleep(0.15)
    return await right(self)


if __name__ == "__main__":
    TorchTrainer.optim_step = optim_step  # type: ignore[method-assign]
    main()
