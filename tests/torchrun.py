"""`python -m torch.distributed.run`, with ranks that are forked from a copy of this process: see `commands.py`."""

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.run import main

import commands

if __name__ == "__main__":
    commands.fork_from_here()
    subprocess_handler.Popen = commands.Popen  # type: ignore[misc]
    main()
