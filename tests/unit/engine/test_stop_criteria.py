import pytest
from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.types import Sampling


@pytest.fixture
def stop_criteria(tokenizer: PreTrainedTokenizerBase) -> StopCriteria:
    return StopCriteria(tokenizer, frozenset({tokenizer.eos_token_id}))


def ended_at(
    stop_criteria: StopCriteria, tokens: list[int], *, limit: int = 1000, stop: tuple[str, ...] = ()
) -> tuple[int, str] | None:
    """After how many tokens the sequence ended, and why; the same whether they come one at a time or several."""
    found = {_ended_at(stop_criteria, tokens, limit, stop, window) for window in (1, 3, 16, 1000)}
    assert len(found) == 1
    return found.pop()


def _ended_at(
    stop_criteria: StopCriteria, tokens: list[int], limit: int, stop: tuple[str, ...], window: int
) -> tuple[int, str] | None:
    sampling = Sampling(1.0, limit, stop=stop)
    for start in range(0, len(tokens), window):
        fresh = tokens[start : start + window]
        count, finish = stop_criteria.check(tokens[:start], fresh, limit - start, sampling)
        if finish is not None:
            return start + count, finish
        assert count == len(fresh)
    return None


def byte_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """One token per byte: the way a model may spell a word that the tokenizer would join."""
    whole = [token for byte in text.encode() for token in _byte_token(tokenizer, byte)]
    assert len(whole) == len(text.encode())
    return whole


def _byte_token(tokenizer: PreTrainedTokenizerBase, byte: int) -> list[int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [tokenizer.convert_tokens_to_ids(bytes_to_unicode()[byte])]


def test_an_end_token_stops(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = [*tokenizer.encode("the answer"), tokenizer.eos_token_id]
    assert ended_at(stop_criteria, tokens) == (len(tokens), "stop")


def test_any_of_several_end_tokens_stops(tokenizer: PreTrainedTokenizerBase) -> None:
    several = StopCriteria(tokenizer, frozenset({1, 4}))
    assert ended_at(several, [10, 4]) == (2, "stop")
    assert ended_at(several, [10, 3]) is None


def test_the_limit_ends_a_sequence(stop_criteria: StopCriteria) -> None:
    assert ended_at(stop_criteria, [20] * 10, limit=4) == (4, "length")


def test_an_end_token_at_the_limit_is_a_stop(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    assert ended_at(stop_criteria, [20, tokenizer.eos_token_id], limit=2) == (2, "stop")


def test_a_stop_token_of_the_request_stops(stop_criteria: StopCriteria) -> None:
    assert stop_criteria.check([], [20, 30, 40], 10, Sampling(1.0, 10, stop_tokens=(40, 30))) == (2, "stop")


def test_first_stop_reason_counts(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = [*byte_tokens(tokenizer, "ab"), tokenizer.eos_token_id, *byte_tokens(tokenizer, "cd")]
    assert ended_at(stop_criteria, tokens, stop=("b",)) == (2, "stop")
    assert ended_at(stop_criteria, tokens, stop=("d",)) == (3, "stop")
    assert ended_at(stop_criteria, tokens, stop=("d",), limit=1) == (1, "length")


@pytest.mark.parametrize("spelled", ["joined", "byte by byte"])
@pytest.mark.parametrize(
    ("stop", "text", "before"),
    [
        (("\n\n",), "one\n\ntwo", "one"),
        (("Question:",), "four\nQuestion: what", "four\n"),
        (("zz", "er"), "the answer", "the answ"),
        (("é",), "caf\u00e9 au lait", "caf"),
        (("→ end",), "a → b → end.", "a → b "),
    ],
)
def test_a_stop_string_ends_the_sequence_and_is_cut(
    stop_criteria: StopCriteria,
    tokenizer: PreTrainedTokenizerBase,
    stop: tuple[str, ...],
    text: str,
    before: str,
    spelled: str,
) -> None:
    tokens = tokenizer.encode(text) if spelled == "joined" else byte_tokens(tokenizer, text)
    ended = ended_at(stop_criteria, tokens, stop=stop)
    assert ended is not None
    count, finish = ended
    assert finish == "stop"
    assert stop_criteria.text(tokens[:count], stop) == before
    assert not any(string in tokenizer.decode(tokens[: count - 1]) for string in stop)  # and not a token too late


def test_a_token_may_run_past_the_stop_string(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer.encode("the answer is ")
    assert len(tokens) < len("the answer is ")  # otherwise no token has several letters and this tests nothing
    ended = ended_at(stop_criteria, tokens, stop=("the ans",))
    assert ended is not None
    assert stop_criteria.text(tokens[: ended[0]], ("the ans",)) == ""


def test_almost_a_stop_string_is_none(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = byte_tokens(tokenizer, "Question; Questio: uestion:")
    assert ended_at(stop_criteria, tokens, stop=("Question:",)) is None


def test_the_text_is_cut_at_the_first_of_several(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert stop_criteria.text(tokenizer.encode("abc def ghi"), ("ghi", "def")) == "abc "


def test_the_text_has_no_end_token(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    assert stop_criteria.text([*tokenizer.encode("the answer"), tokenizer.eos_token_id], ()) == "the answer"
