from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import dojang.models.tiny_lake
from dojang.environments.frozen_lake import RULES
from dojang.environments.lake_maps import make_map, shortest_path
from dojang.models.catalogue import resolve
from make_tiny_lake_model import APART
from make_tiny_model import make_tokenizer
from tiny_lake_corpus import DISTANCE, HOLES, SIZE, draw, look, walk

SHIPPED = Path(dojang.models.tiny_lake.__file__).parent


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(SHIPPED)
    return loaded


def test_the_name_resolves_to_a_small_directory() -> None:
    assert resolve("dojang-tiny-lake") == str(SHIPPED)
    assert sum(file.stat().st_size for file in SHIPPED.glob("*") if file.is_file()) < 500_000


def test_cells_and_moves_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("P.H\n.G.")]
    assert pieces == ["P", ".", "H", "\n", ".", "G", "."]
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("goal up left, hole up: left")]
    assert pieces == ["goal ", "up", " ", "left", ", hole ", "up", ": ", "left"]


def test_the_corpus_leaves_held_out_maps_out() -> None:
    rng = Random(1)
    drawn = {walk(rng, 0.5)[0].content.removeprefix(RULES) for _ in range(2000)}
    held_out = set()
    for seed in range(500):
        lake = make_map(seed, size=SIZE, holes=HOLES, distance=DISTANCE, held_out=True)
        held_out.add(lake.text(lake.start))
    assert len(drawn) > 1500
    assert not drawn & held_out


def test_walkers_who_look_take_a_shortest_way() -> None:
    rng = Random(2)
    for seed in range(50):
        lake = make_map(seed, size=SIZE, holes=HOLES, distance=DISTANCE, held_out=False)
        place, moves = lake.start, 0
        while place != lake.goal:
            place, moves = lake.move(place, look(lake, place, rng).rpartition(" ")[2]), moves + 1
        assert moves == len(shortest_path(lake, lake.start) or ())


def test_the_maker_makes_the_shipped_tokenizer(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, draw, APART)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes(), name
