"""Running the command on the head, while signals, lost hosts and Ray's own end are attended to."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from dojang.cluster.bootstrap.ray_node import RayNode
from dojang.cluster.bootstrap.rendezvous import Muster
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.supervised_process import Kept

__all__ = ["Running"]

_TICK = 0.2


class Running:
    """One command, from its start to the exit code."""

    def __init__(self, muster: Muster, node: RayNode, stop: Stop, say: Callable[[str], None], grace: float) -> None:
        self._muster, self._node, self._stop, self._say, self._grace = muster, node, stop, say, grace
        self._deadline = float("inf")
        self._ray_ended = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        with Kept(command, environment) as kept:
            while (code := kept.poll()) is None:
                self._pass_signals_on(kept)
                self._look_after_ray(kept)
                self._muster.watch()
                if time.monotonic() > self._deadline:
                    self._say(f"the command has not ended within {self._grace:g} s of being told to; it is killed")
                    return kept.kill()
                time.sleep(_TICK)
            return code

    def linger(self, seconds: float) -> None:
        """Keep the cluster up for those who look at it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._stop.since is None and self._node.running:
            self._muster.watch()
            self._stop.wait(_TICK)

    def _pass_signals_on(self, kept: Kept) -> None:
        for number in self._stop.take():
            self._say(f"{signal.Signals(number).name}: passed on to the command, which has {self._grace:g} s")
            self._end_by(kept, number)

    def _look_after_ray(self, kept: Kept) -> None:
        """Work that waits for a cluster which is no more would wait for ever."""
        if not self._ray_ended and not self._node.running:
            self._ray_ended = True
            self._say(f"Ray ended on this host, so the command is told to stop; it said: {self._node.last_words()}")
            self._end_by(kept, signal.SIGTERM)

    def _end_by(self, kept: Kept, number: int) -> None:
        kept.signal(number)
        self._deadline = min(self._deadline, time.monotonic() + self._grace)
