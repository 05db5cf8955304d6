"""Ledger of the prompts drawn by an asynchronous run: pure data, no clock, no tasks.

    drawn ──► ready ──► learned          void: no signal (dynamic sampling), or given up
      └─────────┴─────► void             skipped: left out by the curriculum, never drawn

Prompts are drawn in index order and batches take groups in index order, so a batch does not depend on which group
finishes first. Batch s is a window of prompts: the first P, and with dynamic sampling as many more as were void, for
`resample_rounds` rounds, as the synchronous loop draws them. Its groups are those of the window that are not void.
Prompts that the curriculum skips are in a window as well, beside the ones that count.

A prompt may start when its batch is at most version + lag, where prompts that are not settled count as not void. A void
prompt only moves later prompts into earlier batches, so the staleness of a group (its batch minus the oldest version
that sampled a token) never exceeds the lag. Nothing is dropped for its age, and no capacity is counted or stored: a
restored ledger derives it.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from dojang.types import Group

__all__ = ["Ledger", "token_versions"]

PromptState = Literal["undrawn", "drawn", "ready", "learned", "void", "skipped"]


def token_versions(group: Group) -> tuple[int, int] | None:
    """Lowest and highest weight version of the sampled tokens; None without samples."""
    found = [
        version
        for sample in group.samples
        for version in ([each.version for each in sample.spans if each.end > each.start] or [sample.version])
    ]
    return (min(found), max(found)) if found else None


class Ledger:
    """Knows the state of every prompt, which prompt may start next, and which groups are the next batch."""

    def __init__(
        self,
        prompts_per_step: int,
        lag: int,
        *,
        resample_rounds: int = 0,
        steps: int | None = None,
        skips: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """`skips` tells whether to leave out a prompt; it is asked once, before the prompt would be drawn."""
        if prompts_per_step < 1 or lag < 0 or resample_rounds < 0:
            raise ValueError(f"{prompts_per_step=} must be at least 1, {lag=} and {resample_rounds=} at least 0")
        self._size, self._lag, self._rounds, self._steps = prompts_per_step, lag, resample_rounds, steps
        self.version = 0
        """Newest version published."""
        self.step = 0
        """Batches learned."""
        self.largest_staleness = 0
        """Largest staleness of a learned group, in versions."""
        self._first = 0
        """First prompt of the next batch; all before are settled and forgotten."""
        self._next = 0
        """Lowest prompt index never drawn."""
        self._ready: dict[int, Group] = {}
        self._void: list[int] = []
        """Void prompts from `_first` on, sorted."""
        self._skips = skips
        self._skipped: list[int] = []
        """Skipped prompts from `_first` on, sorted."""
        self._returned: list[int] = []
        """Prompts to draw again, sorted."""
        self._attempts: dict[int, int] = {}
        """Attempt numbers above 0 of prompts from `_first` on."""
        self._handed_out: int | None = None
        """End of the window whose batch was handed out."""
        self._learned = 0
        self._void_reasons: Counter[str] = Counter()
        self._refused = 0

    @property
    def prompts_per_step(self) -> int:
        return self._size

    @property
    def capacity(self) -> int:
        """Largest number of groups that may be in flight, apart from those that replace void ones."""
        return (self._lag + 1) * self._size

    def publish(self, version: int) -> None:
        """Records a published version: the number of batches trained, the one handed out included."""
        most = self.step + (self._handed_out is not None)
        if not self.version <= version <= most:
            raise ValueError(f"version {version} cannot be published: {self.version} to {most} expected")
        self.version = version

    def draw(self) -> int | None:
        """Prompt index that may start now: a returned one if there is any, else the next; None if it has to wait."""
        while not self._returned and self._next < self._limit() and self._skips(self._next):
            self._skipped.append(self._next)
            self._next += 1
        index = self._returned[0] if self._returned else self._next
        if index >= self._limit():
            return None
        self.claim(index)
        return index

    def claim(self, index: int) -> bool:
        """Draws one particular prompt, for a group that is there already; False if it may not start or has started."""
        if index >= self._limit() or (index < self._next and not _holds(self._returned, index)):
            return False
        if index < self._next:
            self._returned.remove(index)
        else:
            self._returned += range(self._next, index)
            self._next = index + 1
        return True

    def deliver(self, index: int, group: Group, has_signal: bool) -> Literal["taken", "known"]:
        """Takes the group of a drawn prompt; the first delivery wins, also after `give_back`. With dynamic sampling a
        group without signal or without samples becomes void."""
        if group.prompt_index != index:
            raise ValueError(f"group {group.prompt_index} was delivered as group {index}")
        state = self.state(index)
        if state == "undrawn":
            raise ValueError(f"prompt {index} is undrawn; only a drawn prompt becomes ready")
        if state != "drawn":
            return "known"
        if self._rounds and not (has_signal and group.samples):
            self.void(index, "no signal" if group.samples else "no verdict")
        else:
            self._take_returned(index)
            self._ready[index] = group
        return "taken"

    def give_back(self, index: int) -> None:
        """Returns a drawn prompt whose worker was lost: it is drawn again, with the next attempt number."""
        if (state := self.state(index)) != "drawn" or _holds(self._returned, index):
            state_now = "returned already" if state == "drawn" else state
            raise ValueError(f"prompt {index} is {state_now}; only a drawn prompt is returned")
        insort(self._returned, index)
        self._attempts[index] = self.attempt(index) + 1

    def void(self, index: int, reason: str) -> None:
        """Settles a drawn or ready prompt without a group. Not possible once its batch is handed out."""
        state = self.state(index)
        if state not in ("drawn", "ready") or index < (self._handed_out or 0):
            state_now = "handed out for its update" if state == "ready" else state
            raise ValueError(f"prompt {index} is {state_now}; only a drawn or ready prompt becomes void")
        self._take_returned(index)
        self._ready.pop(index, None)
        insort(self._void, index)
        self._void_reasons[reason] += 1

    def next_batch(self) -> list[Group] | None:
        """Groups of the oldest batch not learned, once its window is settled; the same until it is learned. Fewer than
        P, or none, if the resample rounds did not find more."""
        end = self._window(self._first)
        if self.step == self._steps or not self._settled(end):
            return None
        self._handed_out = end
        return [self._ready[index] for index in range(self._first, end) if index in self._ready]

    @property
    def batch_end(self) -> int:
        """Prompt index after the last prompt of the batch that was handed out, or of the batch before."""
        return self._first if self._handed_out is None else self._handed_out

    def learn(self, step: int) -> None:
        """Records that batch `step` (0 is the first) was trained on, and forgets its prompts."""
        if self._handed_out is None or step != self.step:
            state = "was not handed out" if self._handed_out is None else "is next"
            raise ValueError(f"batch {step} cannot become learned: batch {self.step} {state}")
        end, batch = self._handed_out, range(self._first, self._handed_out)
        groups = [self._ready[index] for index in batch if index in self._ready]
        for group in groups:
            if found := token_versions(group):
                self._check_staleness(group.prompt_index, step - found[0])
        for index in batch:
            self._ready.pop(index, None)
            self._attempts.pop(index, None)
        self._void = self._void[bisect_left(self._void, end) :]
        self._skipped = self._skipped[bisect_left(self._skipped, end) :]
        self._learned += len(groups)
        self.step, self._first, self._handed_out = step + 1, end, None

    def state(self, index: int) -> PromptState:
        """State of a prompt. Void prompts of learned batches are forgotten and count as learned."""
        if index >= self._next or (_holds(self._returned, index) and not self._attempts.get(index)):
            return "undrawn"
        if index < self._first:
            return "learned"
        if index in self._ready:
            return "ready"
        if _holds(self._skipped, index):
            return "skipped"
        return "void" if _holds(self._void, index) else "drawn"

    def attempt(self, index: int) -> int:
        """How many times a prompt was drawn before."""
        return self._attempts.get(index, 0)

    def oldest_version(self, index: int) -> int:
        """Lowest version that may sample a token of this prompt."""
        batch, end = self.step, self._window(self._first)
        while end <= index:
            batch, end = batch + 1, self._window(end)
        return max(0, batch - self._lag)

    def missing(self) -> list[int]:
        """Prompts that the next batch waits for."""
        return [index for index in range(self._first, self._window(self._first)) if not self._is_settled(index)]

    @property
    def finished(self) -> bool:
        """Whether the prompts of all batches of the run are settled, so that none will be drawn any more."""
        return self._steps is not None and self.version + self._lag >= self._steps - 1 and self._settled(self._limit())

    def counts(self) -> dict[str, int]:
        """Prompts by state (drawn: not settled yet; learned and void: over the whole run), void ones by reason, and
        groups refused by `restore`."""
        open_prompts = self._next - self._first - len(self._ready) - len(self._void) - len(self._skipped)
        return {
            "drawn": open_prompts,
            "ready": len(self._ready),
            "learned": self._learned,
            "void": self._void_reasons.total(),
            **{f"void/{reason}": count for reason, count in sorted(self._void_reasons.items())},
            "refused": self._refused,
        }

    def ready_groups(self) -> list[Group]:
        """Groups not learned yet, in index order: part of a checkpoint, beside the snapshot."""
        return [self._ready[index] for index in sorted(self._ready)]

    def snapshot(self) -> dict[str, Any]:
        """State as JSON, without groups. Prompts in flight are saved as returned."""
        pending = (index for index in range(self._first, self._next) if not self._is_settled(index))
        in_flight = {index: self.attempt(index) + (not _holds(self._returned, index)) for index in pending}
        return {
            "step": self.step,
            "version": self.version,
            "first": self._first,
            "next": self._next,
            "ready": sorted(self._ready),
            "void": list(self._void),
            "skipped": list(self._skipped),
            "returned": list(in_flight.items()),
            "learned": self._learned,
            "void_reasons": dict(self._void_reasons),
            "refused": self._refused,
            "largest_staleness": self.largest_staleness,
        }

    @classmethod
    def restore(
        cls,
        snapshot: Mapping[str, Any],
        groups: Iterable[Group],
        *,
        prompts_per_step: int,
        lag: int,
        resample_rounds: int = 0,
        steps: int | None = None,
        skips: Callable[[int], bool] = lambda index: False,
    ) -> "Ledger":
        """Ledger of a snapshot and its ready groups. Settings may have changed: a group that is too old for a smaller
        lag is refused, so its prompt is drawn again. ValueError if groups and snapshot do not belong together."""
        ledger = cls(prompts_per_step, lag, resample_rounds=resample_rounds, steps=steps, skips=skips)
        ledger.step, ledger.version = snapshot["step"], snapshot["version"]
        ledger._first, ledger._next = snapshot["first"], snapshot["next"]
        ledger._void, ledger._void_reasons = list(snapshot["void"]), Counter(snapshot["void_reasons"])
        ledger._skipped = list(snapshot.get("skipped", ()))
        ledger._returned = [index for index, _ in snapshot["returned"]]
        ledger._attempts = {index: attempt for index, attempt in snapshot["returned"] if attempt}
        ledger._learned, ledger._refused = snapshot["learned"], snapshot["refused"]
        ledger.largest_staleness = snapshot["largest_staleness"]
        found = {group.prompt_index: group for group in groups}
        if sorted(found) != snapshot["ready"] or not ledger._adds_up(len(found)):
            raise ValueError(f"groups {sorted(found)} are not the ready groups {snapshot['ready']} of the snapshot")
        for index, group in found.items():
            ledger._take_saved(index, group)
        return ledger

    def _take_saved(self, index: int, group: Group) -> None:
        versions = token_versions(group)
        if versions is None or self.oldest_version(index) <= versions[0]:
            self._ready[index] = group
        else:
            insort(self._returned, index)
            self._attempts[index] = 1
            self._refused += 1

    def _adds_up(self, ready: int) -> bool:
        return self._next - self._first == ready + len(self._void) + len(self._skipped) + len(self._returned)

    def _window(self, start: int) -> int:
        """End of the window of a batch: P prompts that are not skipped, and for each resample round as many more as
        lack."""
        end = self._after(start, self._size)
        for _ in range(self._rounds):
            void = bisect_left(self._void, end) - bisect_left(self._void, start)
            before, end = end, self._after(start, self._size + void)
            if end == before:
                break
        return end

    def _after(self, start: int, count: int) -> int:
        """Prompt index after the next `count` prompts from `start` on that are not skipped."""
        end = start + count
        at = bisect_left(self._skipped, start)
        while at < len(self._skipped) and self._skipped[at] < end:
            at, end = at + 1, end + 1
        return end

    def _limit(self) -> int:
        """First prompt index that may not start yet."""
        last = self.version + self._lag if self._steps is None else min(self.version + self._lag, self._steps - 1)
        end = self._first
        for _ in range(self.step, last + 1):
            end = self._window(end)
        return end

    def _settled(self, end: int) -> bool:
        return all(self._is_settled(index) for index in range(self._first, end))

    def _is_settled(self, index: int) -> bool:
        return index in self._ready or _holds(self._void, index) or _holds(self._skipped, index)

    def _take_returned(self, index: int) -> None:
        if _holds(self._returned, index):  # an expired lease was delivered after all
            self._returned.remove(index)

    def _check_staleness(self, index: int, staleness: int) -> None:
        if staleness > self._lag:
            raise ValueError(f"group {index} is {staleness} versions old, but the lag is {self._lag}")
        self.largest_staleness = max(self.largest_staleness, staleness)


def _holds(indices: list[int], index: int) -> bool:
    """Whether a sorted list has this index."""
    at = bisect_left(indices, index)
    return at < len(indices) and indices[at] == index
