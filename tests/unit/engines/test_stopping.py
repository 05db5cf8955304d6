import pytest
from transformers import PreTrainedTokenizerBase

from dojang.engines.stopping import Stopper


@pytest.fixture
def stopper(tokenizer: PreTrainedTokenizerBase) -> Stopper:
    return Stopper(tokenizer, frozenset({tokenizer.eos_token_id}))


def ended_at(
    stopper: Stopper, tokens: list[int], *, limit: int = 1000, stop: tuple[str, ...] = ()
) -> tuple[int, str] | None:
    """After how many tokens the sequence ended, and why; fed one at a time, as an engine does."""
    for count in range(1, len(tokens) + 1):
        finish = stopper.finish(tokens[:count], limit, stop)
        if finish is not None:
            return count, finish
    return None


def byte_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """One token per byte: the way a model may spell a word that the tokenizer would join."""
    whole = [token for byte in text.encode() for token in _byte_token(tokenizer, byte)]
    assert len(whole) == len(text.encode())
    return whole


def _byte_token(tokenizer: PreTrainedTokenizerBase, byte: int) -> list[int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [tokenizer.convert_tokens_to_ids(bytes_to_unicode()[byte])]


def test_an_end_token_stops(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = [*tokenizer.encode("the answer"), tokenizer.eos_token_id]
    assert ended_at(stopper, tokens) == (len(tokens), "stop")


def test_any_of_several_end_tokens_stops(tokenizer: PreTrainedTokenizerBase) -> None:
    several = Stopper(tokenizer, frozenset({1, 4}))
    assert several.finish([10, 4], 10, ()) == "stop"
    assert several.finish([10, 3], 10, ()) is None


def test_the_limit_ends_a_sequence(stopper: Stopper) -> None:
    assert ended_at(stopper, [20] * 10, limit=4) == (4, "length")


def test_an_end_token_at_the_limit_is_a_stop(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    assert stopper.finish([20, tokenizer.eos_token_id], 2, ()) == "stop"


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
    stopper: Stopper,
    tokenizer: PreTrainedTokenizerBase,
    stop: tuple[str, ...],
    text: str,
    before: str,
    spelled: str,
) -> None:
    tokens = tokenizer.encode(text) if spelled == "joined" else byte_tokens(tokenizer, text)
    ended = ended_at(stopper, tokens, stop=stop)
    assert ended is not None
    count, finish = ended
    assert finish == "stop"
    assert stopper.text(tokens[:count], stop) == before
    assert not any(string in tokenizer.decode(tokens[: count - 1]) for string in stop)  # and not a token too late


def test_a_token_may_run_past_the_stop_string(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer.encode("the answer is ")
    assert len(tokens) < len("the answer is ")  # otherwise no token has several letters and this tests nothing
    ended = ended_at(stopper, tokens, stop=("the ans",))
    assert ended is not None
    assert stopper.text(tokens[: ended[0]], ("the ans",)) == ""


def test_almost_a_stop_string_is_none(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = byte_tokens(tokenizer, "Question; Questio: uestion:")
    assert ended_at(stopper, tokens, stop=("Question:",)) is None


def test_the_text_is_cut_at_the_first_of_several(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    assert stopper.text(tokenizer.encode("abc def ghi"), ("ghi", "def")) == "abc "


def test_the_text_has_no_end_token(stopper: Stopper, tokenizer: PreTrainedTokenizerBase) -> None:
    assert stopper.text([*tokenizer.encode("the answer"), tokenizer.eos_token_id], ()) == "the answer"
