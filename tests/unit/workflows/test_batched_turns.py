import asyncio

import pytest

from dojang.workflows.batched_turns import TurnBarrier


def test_conversations_continue_together_and_in_order() -> None:
    rounds, events = TurnBarrier(), list[str]()

    async def talk(place: int, delays: list[float]) -> None:
        with rounds.active():
            for number, delay in enumerate(delays):
                await asyncio.sleep(delay)
                events.append(f"came {number}")
                await rounds.wait_turn(place)
                events.append(f"{place} in {number}")

    async def main() -> None:
        await asyncio.gather(talk(2, [0.0, 0.02]), talk(0, [0.02, 0.0]), talk(1, [0.01]))

    asyncio.run(main())
    assert events[:6] == ["came 0", "came 0", "came 0", "0 in 0", "1 in 0", "2 in 0"]
    assert events[-2:] == ["0 in 1", "2 in 1"]  # the one that has left is not waited for


def test_all_wake_in_the_same_turn_of_the_event_loop() -> None:
    """The last to come must not be ahead of the others: an engine would see it in a batch of its own."""
    rounds, turns, now = TurnBarrier(), list[int](), 0

    async def count() -> None:
        nonlocal now
        while True:
            now += 1
            await asyncio.sleep(0)

    async def talk(place: int) -> None:
        with rounds.active():
            await asyncio.sleep(0.001 * place)
            await rounds.wait_turn(-place)
            turns.append(now)

    async def main() -> None:
        counting = asyncio.ensure_future(count())
        await asyncio.gather(*map(talk, range(5)))
        counting.cancel()

    asyncio.run(main())
    assert max(turns) - min(turns) <= 1  # the counter itself runs somewhere among them


def test_a_failed_or_cancelled_conversation_does_not_block_others() -> None:
    rounds = TurnBarrier()

    async def waits(place: int) -> int:
        with rounds.active():
            await rounds.wait_turn(place)
            return place

    async def fails() -> None:
        with rounds.active():
            await asyncio.sleep(0.01)
            raise RuntimeError("lost")

    async def main() -> list[object]:
        sleeper = asyncio.ensure_future(waits(9))
        others = asyncio.gather(waits(1), fails(), waits(2), return_exceptions=True)
        await asyncio.sleep(0.005)
        sleeper.cancel()
        found = await asyncio.wait_for(others, 5)
        with pytest.raises(asyncio.CancelledError):
            await sleeper
        return found

    first, lost, second = asyncio.run(main())
    assert (first, second) == (1, 2)
    assert isinstance(lost, RuntimeError)
