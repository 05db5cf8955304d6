"""Which of a cluster's nodes are alive, by Ray's own list.

`python -m dojang.cluster.bootstrap.node_check ADDRESS` prints the names and addresses of the live nodes once a
second, as a JSON object, until its reader closes the pipe. It runs in a separate process because a Ray driver replaces
signal handlers and ends its process when Ray ends.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from subprocess import PIPE

from dojang.cluster.bootstrap.supervised_process import Kept

__all__ = ["RollCall", "main"]


class RollCall:
    """Asks until it is closed, and begins anew if Ray was not ready yet."""

    def __init__(self, ray: str, environment: Mapping[str, str]) -> None:
        self._ray, self._environment = ray, environment
        self._alive: dict[str, str] = {}
        self._begin()

    def alive(self) -> dict[str, str]:
        """The nodes that were alive when Ray was asked last, and their addresses."""
        if self._kept.poll() is not None:
            self.close()
            self._begin()
        return self._alive

    def close(self) -> None:
        self._kept.kill()
        self._reader.join(5)

    def _begin(self) -> None:
        command = [sys.executable, "-P", "-m", "dojang.cluster.bootstrap.node_check", self._ray]
        self._kept = Kept(command, self._environment, PIPE, grace=1.0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for line in self._kept.lines:
                if line.startswith(b"{"):  # and not what Ray has to say besides
                    self._alive = json.loads(line)
        except ValueError:  # closed, or the last line was not whole
            return


def main() -> None:
    import ray

    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR, namespace="dojang-launch")
    while True:
        alive = {node["NodeName"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        sys.stdout.write(json.dumps(alive) + "\n")
        sys.stdout.flush()
        time.sleep(1)


if __name__ == "__main__":
    main()
