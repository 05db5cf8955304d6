"""The soak of weight packs refuses every wrong one, and would say so if it did not."""

import asyncio

import pytest

import weight_soak


def test_every_wrong_pack_is_refused() -> None:
    refused, accepted = asyncio.run(weight_soak.soak(300, 0))
    assert accepted == []
    assert sum(refused.values()) == 300
    assert set(refused) == {*weight_soak.DAMAGES, *weight_soak.MISTAKES}


def test_accepted_packs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_soak, "damage", lambda data, kind, draw: data)
    _, accepted = asyncio.run(weight_soak.soak(4, 0))
    assert accepted
