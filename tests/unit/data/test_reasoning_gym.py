"""Puzzles as reasoning-gym makes them."""

import ast
from collections import Counter

import pytest
from pydantic import ValidationError

from dojang.core import section
from dojang.core.errors import ConfigError, DataError
from dojang.data import reasoning_gym
from dojang.data.reasoning_gym import ReasoningGymConfig


def settings(generators: object, **others: object) -> ReasoningGymConfig:
    return ReasoningGymConfig.model_validate({"generators": generators, "train_size": 20, "test_size": 10, **others})


def puzzles(generators: object, **others: object) -> ReasoningGymConfig:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    return settings(generators, **others)


def test_puzzle_prompt() -> None:
    config = puzzles({"chain_sum": {"settings": {"min_terms": 2, "max_terms": 2}}})
    train, test = config.load("train"), config.load("test")
    assert (len(train), len(test)) == (20, 10)
    system, question = train[0].messages
    assert system.role == "system"
    assert "<answer>" in system.content
    entry = ast.literal_eval(train[0].reference["entry"])  # type: ignore[index]
    assert question.content == entry["question"]
    assert entry["answer"] not in question.content
    assert entry["metadata"]["num_terms"] == 2
    assert (train[0].id, train[0].source, train[0].tier) == (
        "reasoning_gym/chain_sum/train/0",
        "reasoning_gym",
        "chain_sum",
    )
    assert len({each.id for each in [*train, *test]}) == 30


def test_system_prompt_can_be_changed() -> None:
    assert puzzles({"chain_sum": {}}, system="Be brief.").load("test")[0].messages[0].content == "Be brief."
    assert [each.role for each in puzzles({"chain_sum": {}}, system="").load("test")[0].messages] == ["user"]


def test_held_out_puzzles_are_not_among_the_training_ones() -> None:
    few = puzzles({"coin_flip": {"settings": {"max_trials": 4}}}, train_size=200, test_size=20)
    train, test = ([each.messages[-1].content for each in few.load(split)] for split in ("train", "test"))
    assert len(test) == 20
    assert 0 < len(train) < 200  # some were drawn on both sides
    assert not set(train) & set(test)
    # Generators take a seed for each problem, and count up: the next seed alone would give nearly the same problems.
    sums = [puzzles({"chain_sum": {}}, seed=seed).load("test") for seed in (0, 1)]
    assert len({each.messages[-1].content for each in [*sums[0], *sums[1]]}) == 11


def test_too_few_puzzles_are_an_error() -> None:
    with pytest.raises(DataError, match=r"tower_of_hanoi: all 2 training problems are also held out"):
        puzzles(
            {"tower_of_hanoi": {"settings": {"min_disks": 3, "max_disks": 3, "max_pegs": 3}}},
            train_size=2,
            test_size=500,
        ).load("train")


def test_generators_are_mixed_by_weight() -> None:
    mixed = puzzles({"chain_sum": {"weight": 3}, "leg_counting": {}}, test_size=200).load("test")
    count = Counter(each.tier for each in mixed)
    assert set(count) == {"chain_sum", "leg_counting"}
    assert 120 < count["chain_sum"] < 180
    assert {each.tier for each in mixed[:10]} == set(count)  # the first few stand for all


def test_a_seed_gives_the_same_puzzles_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two of these give other problems in each process that hashes text at random.
    generators: dict[str, object] = {name: {} for name in ("chain_sum", "word_ladder", "isomorphic_strings")}
    first = puzzles(generators, test_size=20).load("test")  # each split takes a process, and training problems two
    reasoning_gym._generated.cache_clear()
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    assert puzzles(generators, test_size=20).load("test") == first
    assert {each.tier for each in first} == set(generators)
    assert puzzles(generators, test_size=20, seed=70).load("test") != first


def test_invalid_generators_are_reported_at_once() -> None:
    generators = {
        "chain_sums": {},
        "composite": {},
        "": {},
        "maze": {"settings": {"min_dists": 3, "rooms": 3}},
        "chain_sum": {"settings": {"min_terms": 9, "max_terms": 2}},
        "leg_counting": {"settings": {"max_animals": "many"}},
    }
    with pytest.raises(DataError) as caught:
        puzzles(generators).load("train")
    for said in (
        "has no generator 'chain_sums'; did you mean 'chain_sum'",
        "has no generator 'composite'",
        "it has ab, acre, advanced_geometry",
        "maze.settings: unknown key 'min_dists'; did you mean 'min_dist'?",
        "unknown key 'rooms'; maze takes ",
        "chain_sum.settings: reasoning-gym refuses {'min_terms': 9, 'max_terms': 2}: max_terms must be >= min_terms",
        "leg_counting.settings: reasoning-gym refuses {'max_animals': 'many'}: ",
    ):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("generators", "said"),
    [
        ({}, "at least 1 item"),
        ({"maze": {"weight": 0}}, "greater than 0"),
        ({"maze": {"settings": {"seed": 1}}}, "seed cannot be set here; use data.seed"),
        ({"maze": {"setings": {}}}, "Extra inputs are not permitted"),
    ],
)
def test_settings_are_validated_without_the_library(generators: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(generators)


def test_a_generator_that_takes_too_long_is_killed() -> None:
    with pytest.raises(DataError, match=r"took longer than data.timeout_s=0.2"):
        puzzles({"maze": {}}, timeout_s=0.2).load("train")


def test_unknown_split_is_refused() -> None:
    with pytest.raises(DataError, match="no split 'dev'"):
        settings({"maze": {}}).load("dev")


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[reasoning-gym\]'"):
        settings({"maze": {}}).load("train")
