"""Session: the verbs of a training loop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dojang
from dojang.core.errors import ConfigError

SMALL = {"rollout": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 24}, "eval": {"problems": 4}}


def test_a_session_trains_as_the_loop_does(tmp_path: Path) -> None:
    """Two steps of the verbs give the weights of two steps of dojang.train."""

    async def own_loop() -> list[list[str]]:
        texts = []
        async with dojang.Session("quickstart", **SMALL) as session:
            for _ in range(2):
                groups = await session.sample()
                texts.append([sample.text for group in groups for sample in group.samples])
                await session.forward_backward(groups)
                assert (await session.optim_step())["actor/grad_norm"] >= 0
                await session.publish()
            assert 0 <= await session.evaluate(session.held_out[:2]) <= 1
            await session.save(tmp_path / "model")
        return texts

    texts = asyncio.run(own_loop())
    options = {**SMALL, "loop": {"mode": "sync"}}  # the verbs above take turns, too
    run = dojang.train("quickstart", steps=2, run_dir=tmp_path / "run", progress=False, **options)
    rows = run.rollouts.to_pylist()
    assert [[row["response"] for row in rows if row["step"] == step] for step in (1, 2)] == texts
    mine, theirs = (folder / "model.safetensors" for folder in (tmp_path / "model", run.last_model or tmp_path))
    assert mine.read_bytes() == theirs.read_bytes()


def test_a_saved_session_is_restored(tmp_path: Path) -> None:
    async def train_save_and_restore() -> None:
        async with dojang.Session("quickstart", **SMALL) as session:
            first = await session.sample(session.problems[:1])
            await session.save(tmp_path / "model")
            before = await session.logprobs(first[0].samples)
            groups = await session.sample(4)
            await session.forward_backward(groups)
            await session.optim_step()
            assert await session.logprobs(first[0].samples) != before
            await session.restore(tmp_path / "model")
            assert await session.logprobs(first[0].samples) == before

    asyncio.run(train_save_and_restore())


def test_a_session_outside_its_block_is_refused() -> None:
    session = dojang.Session("quickstart")
    with pytest.raises(ConfigError, match="the session is not open"):
        asyncio.run(session.optim_step())


def test_wrong_arguments_are_refused() -> None:
    session = dojang.Session("quickstart")
    with pytest.raises(ConfigError, match="groups must be a list"):
        asyncio.run(session.forward_backward([]))
    with pytest.raises(ConfigError, match="samples must be a list"):
        asyncio.run(session.logprobs([1]))  # type: ignore[list-item]


def test_a_session_in_a_plain_block_is_explained() -> None:
    with pytest.raises(ConfigError, match="use `async with`"), dojang.Session("quickstart"):
        pass


def test_a_session_on_ray_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Session runs in this process"):
        dojang.Session("quickstart", runtime="ray")


@pytest.mark.parametrize("loop", [{"workers": 2}, {"listen": "127.0.0.1:0"}])
def test_rollout_workers_of_a_session_are_refused(loop: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"a Session samples in this process; leave loop\.workers and"):
        dojang.Session("quickstart", loop={"mode": "stream", **loop})
