"""Lists the live nodes of a Ray cluster.

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

from dojang.cluster.bootstrap.supervised_process import SupervisedProcess

__all__ = ["NodeCheck", "main"]


class NodeCheck:
    """Polls Ray for live nodes until closed; restarts its process if Ray was not ready yet."""

    def __init__(self, ray: str, environment: Mapping[str, str]) -> None:
        self._ray, self._environment = ray, environment
        self._alive: dict[str, str] = {}
        self._start()

    def alive(self) -> dict[str, str]:
        """Names and addresses of the nodes that were alive at the last poll."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        return self._alive

    def close(self) -> None:
        self._process.kill()
        self._reader.join(5)

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "dojang.cluster.bootstrap.node_check", self._ray]
        self._process = SupervisedProcess(command, self._environment, PIPE, grace=1.0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for line in self._process.lines:
                if line.startswith(b"{"):  # skip Ray's own log lines
                    self._alive = json.loads(line)
        except ValueError:  # the pipe was closed, or the last line was cut
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
