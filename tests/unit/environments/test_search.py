"""Search over a corpus: BM25 compared with its formula, files, cache, episodes."""

import json
import math
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import DataError
from dojang.environments import search
from dojang.environments.bm25 import Bm25, load_or_build, words_of
from dojang.environments.search import SearchConfig
from dojang.types import Outcome
from scripted_episodes import LastWordTask, play, tool_call


def by_formula(texts: list[str], query: str) -> list[float]:
    """BM25 as it is defined, with one loop per passage and word."""
    counts = [Counter(words_of(text)) for text in texts]
    mean = sum(sum(each.values()) for each in counts) / len(texts)
    scores = []
    for count in counts:
        score = 0.0
        for word in set(words_of(query)):
            having = sum(word in each for each in counts)
            rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            length = sum(count.values())
            score += rarity * count[word] * 2.2 / (count[word] + 1.2 * (0.25 + 0.75 * length / mean))
        scores.append(score)
    return scores


def test_scores_are_those_of_the_formula() -> None:
    source = random.Random(0)
    vocabulary = [f"w{number}" for number in range(40)]
    texts = [" ".join(source.choices(vocabulary, k=source.randrange(0, 30))) for _ in range(200)]
    index = Bm25.build(texts)
    for query in ("w1 w2 W3", "w7", "w1 w1 unknown", "unknown", ""):
        scores = by_formula(texts, query)
        found = index.search(query, 10)
        best = sorted((place for place, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))[:10]
        assert [round(score, 4) for _, score in found] == [round(scores[place], 4) for place in best]
        assert all(score == pytest.approx(scores[place], rel=1e-5) for place, score in found)


def test_equal_passages_are_in_the_order_of_the_corpus() -> None:
    assert [place for place, _ in Bm25.build(["a b", "c", "a b", "a b"]).search("a", 2)] == [0, 2]


def test_a_hundred_thousand_passages_are_searched_in_milliseconds(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(50_000)])
    drawn = words[np.minimum(source.zipf(1.2, (100_000, 12)) - 1, 49_999)]
    texts = [" ".join(row) for row in drawn]
    built = load_or_build(texts, tmp_path / "index.npz")
    again = Bm25.load(tmp_path / "index.npz")
    started = time.process_time()
    for number in range(20):
        assert again.search(f"word0 word1 word{number} word{40 * number}", 5) == built.search(
            f"word0 word1 word{number} word{40 * number}", 5
        )
    assert (time.process_time() - started) / 40 < 0.1


def test_a_broken_cache_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "index.npz"
    path.write_bytes(b"no index")
    assert load_or_build(["one two"], path).search("two", 1)[0][0] == 0
    assert Bm25.load(path).size == 1


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    rows = [
        {"title": "Answers", "text": "The answer to everything is 42."},
        {"contents": "Paris is the capital of France."},
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "more" / "b.txt").write_text(
        "Rome is the capital\nof Italy.\n\n\n\nBerlin is " + "very " * 500 + "large."
    )
    return folder


def test_files_of_several_kinds_are_read(corpus: Path) -> None:
    tool = SearchConfig(corpus=[corpus], top_k=2, passage_chars=100).environment()
    assert isinstance(tool, search.Search)
    assert tool.search("capital Italy") == ("[1] Rome is the capital\nof Italy.\n\n[2] Paris is the capital of France.")
    assert tool.search("everything").startswith("[1] Answers\nThe answer")
    assert "characters left out" in tool.search("Berlin")
    assert tool.search("zebra") == "no passage has these words"
    assert len(list((corpus.parent / "cache" / "search").iterdir())) == 1


def test_an_episode_is_graded_by_the_task(tokenizer: PreTrainedTokenizerBase, corpus: Path) -> None:
    section = SearchConfig(corpus=[corpus])
    section.check_problems(LastWordTask(), [])
    replies = [tool_call("search", query="answer to everything"), tool_call("search", query=3), "It is 42"]
    sample = play(tokenizer, section, replies)
    assert sample.verdict.outcome is Outcome.ACCEPTED
    assert "The answer to everything is 42." in sample.text
    assert "must be text" in sample.text


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.jsonl", '{"text": "a"}\n{"words": "b"}', "line 2 has no text"),
        ("a.jsonl", "{", "line 1 is no valid JSON"),
        ("a.jsonl", "\n", "no passages"),
        ("a.csv", "a", "is no file, nor a folder"),
    ],
)
def test_a_corpus_without_passages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, reason: str
) -> None:
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        SearchConfig(corpus=[folder]).environment()
