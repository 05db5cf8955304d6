"""Runs the job's command on the head; forwards signals to it, logs lost hosts, and stops it if Ray ends."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from dojang.cluster.bootstrap.ray_node import RayNode
from dojang.cluster.bootstrap.rendezvous import Rendezvous
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.supervised_process import SupervisedProcess

__all__ = ["RunningCommand"]

_TICK = 0.2


class RunningCommand:
    """Runs one command and returns its exit code."""

    def __init__(
        self, rendezvous: Rendezvous, node: RayNode, stop: Stop, log: Callable[[str], None], grace: float
    ) -> None:
        self._rendezvous, self._node, self._stop, self._log, self._grace = rendezvous, node, stop, log, grace
        self._deadline = float("inf")
        self._ray_ended = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        with SupervisedProcess(command, environment) as process:
            while (code := process.poll()) is None:
                self._forward_signals(process)
                self._check_ray(process)
                self._rendezvous.report_lost_hosts()
                if time.monotonic() > self._deadline:
                    self._log(f"the command did not end within {self._grace:g} s after the signal; killing it")
                    return process.kill()
                time.sleep(_TICK)
            return code

    def keep_up(self, seconds: float) -> None:
        """Keeps the cluster up for inspection, until a stop signal or the end of Ray."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._stop.since is None and self._node.running:
            self._rendezvous.report_lost_hosts()
            self._stop.wait(_TICK)

    def _forward_signals(self, process: SupervisedProcess) -> None:
        for number in self._stop.take():
            self._log(f"{signal.Signals(number).name}: forwarded to the command, which has {self._grace:g} s to end")
            self._signal(process, number)

    def _check_ray(self, process: SupervisedProcess) -> None:
        """Stops the command if Ray has ended: otherwise it would wait for the cluster for ever."""
        if not self._ray_ended and not self._node.running:
            self._ray_ended = True
            self._log(f"Ray ended on this host; stopping the command. Ray's last output: {self._node.last_output()}")
            self._signal(process, signal.SIGTERM)

    def _signal(self, process: SupervisedProcess, number: int) -> None:
        process.signal(number)
        self._deadline = min(self._deadline, time.monotonic() + self._grace)
