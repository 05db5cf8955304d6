import re

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.types import Sampling, StopLine


@pytest.fixture
def stop_criteria(tokenizer: PreTrainedTokenizerBase) -> StopCriteria:
    return StopCriteria(tokenizer, frozenset({tokenizer.eos_token_id}))


def ended_at(
    stop_criteria: StopCriteria,
    tokens: list[int],
    *,
    limit: int = 1000,
    stop: tuple[str, ...] = (),
    stop_line: StopLine | None = None,
) -> tuple[int, str] | None:
    """After how many tokens the sequence ended, and why; the same whether they come one at a time or several."""
    sampling = Sampling(1.0, limit, stop=stop, stop_line=stop_line)
    found = {_ended_at(stop_criteria, tokens, limit, sampling, window) for window in (1, 3, 16, 1000)}
    assert len(found) == 1
    return found.pop()


def _ended_at(
    stop_criteria: StopCriteria, tokens: list[int], limit: int, sampling: Sampling, window: int
) -> tuple[int, str] | None:
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
    assert stop_criteria.text(tokens[:count], Sampling(1.0, 9, stop=stop)) == before
    assert not any(string in tokenizer.decode(tokens[: count - 1]) for string in stop)  # and not a token too late


def test_a_token_may_run_past_the_stop_string(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer.encode("the answer is ")
    assert len(tokens) < len("the answer is ")  # otherwise no token has several letters and this tests nothing
    ended = ended_at(stop_criteria, tokens, stop=("the ans",))
    assert ended is not None
    assert stop_criteria.text(tokens[: ended[0]], Sampling(1.0, 9, stop=("the ans",))) == ""


def test_almost_a_stop_string_is_none(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = byte_tokens(tokenizer, "Question; Questio: uestion:")
    assert ended_at(stop_criteria, tokens, stop=("Question:",)) is None


def test_the_text_is_cut_at_the_first_of_several(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert stop_criteria.text(tokenizer.encode("abc def ghi"), Sampling(1.0, 9, stop=("ghi", "def"))) == "abc "


def test_the_text_has_no_end_token(stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = [*tokenizer.encode("the answer"), tokenizer.eos_token_id]
    assert stop_criteria.text(tokens, Sampling(1.0, 9)) == "the answer"


# Stop lines


def marked_line(text: str) -> int | None:
    """The end of the first line that begins with >>, if a line break follows."""
    found = re.search(r"^>>.*(?=\n)", text, re.MULTILINE)
    return found.end() if found else None


def name_line(text: str) -> int | None:
    """The beginning of the first line that begins with a name."""
    found = re.search(r"^(?:Ann|Bób):", text, re.MULTILINE)
    return found.start() if found else None


MARKED, NAMED = StopLine((">>",), marked_line, whole_line=True), StopLine(("Ann:", "Bób:"), name_line)


@pytest.mark.parametrize("spelled", ["joined", "byte by byte"])
@pytest.mark.parametrize(
    ("line", "text", "before"),
    [
        (MARKED, "one\n>> 42\ntwo", "one\n>> 42"),
        (MARKED, ">> 42\n\n>> 43\n", ">> 42"),
        (MARKED, "a >> b\n>> caf\u00e9 → 5\n\u00e9t\u00e9", "a >> b\n>> caf\u00e9 → 5"),
        (MARKED, "x >>\n" * 30 + ">>\ny", "x >>\n" * 30 + ">>"),
        (MARKED, ">> " + "a very long line " * 40 + "\n\nmore", ">> " + "a very long line " * 40),
        (NAMED, "the answer.\nAnn: why?", "the answer.\n"),
        (NAMED, "to Ann: no\nB\u00f3b: yes", "to Ann: no\n"),
    ],
)
def test_a_stop_line_ends_the_sequence_and_the_text(
    stop_criteria: StopCriteria,
    tokenizer: PreTrainedTokenizerBase,
    line: StopLine,
    text: str,
    before: str,
    spelled: str,
) -> None:
    tokens = tokenizer.encode(text) if spelled == "joined" else byte_tokens(tokenizer, text)
    ended = ended_at(stop_criteria, tokens, stop_line=line, limit=5000)
    assert ended is not None
    count, finish = ended
    assert finish == "stop"
    assert stop_criteria.text(tokens[:count], Sampling(1.0, 5000, stop_line=line)) == before
    assert line.end(tokenizer.decode(tokens[:count])) is not None
    assert line.end(tokenizer.decode(tokens[: count - 1])) is None  # and not a token too late


@pytest.mark.parametrize("text", ["one\n>> 42", "a >> b\nc >> d\n", "no mark\n at all\n"])
def test_a_line_that_is_not_complete_or_not_the_stop_line_is_none(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    assert ended_at(stop_criteria, tokenizer.encode(text), stop_line=MARKED) is None
    assert stop_criteria.text(tokenizer.encode(text), Sampling(1.0, 9, stop_line=MARKED)) == text


def test_the_first_of_all_stop_conditions_counts(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = [*byte_tokens(tokenizer, ">> 4\nab"), tokenizer.eos_token_id]
    assert ended_at(stop_criteria, tokens, stop_line=MARKED) == (5, "stop")
    assert ended_at(stop_criteria, tokens, stop_line=MARKED, stop=("4",)) == (4, "stop")
    assert ended_at(stop_criteria, tokens, stop_line=MARKED, stop=("b",)) == (5, "stop")
    assert ended_at(stop_criteria, tokens, stop_line=MARKED, limit=5) == (5, "stop")  # complete at the limit: not cut
    assert ended_at(stop_criteria, tokens, stop_line=MARKED, limit=4) == (4, "length")
    assert ended_at(stop_criteria, tokens, stop_line=NAMED) == (8, "stop")
    text = stop_criteria.text(tokens[:4], Sampling(1.0, 9, stop=("4",), stop_line=MARKED))
    assert text == ">> "


def test_engines_with_stop_strings_only_wait_for_the_line_and_then_for_its_end() -> None:
    assert [MARKED.awaited(text) for text in ("", "a\n>> 4", "a >>", ">> 4\n")] == [(">>",), ("\n",), ("\n",), (">>",)]
    assert NAMED.awaited("Ann:") == ("Ann:", "Bób:")


def test_a_text_that_did_not_end_at_the_line_is_whole(
    stop_criteria: StopCriteria, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = byte_tokens(tokenizer, ">> 4\nmore")  # as if the line had become a stop line later
    assert stop_criteria.text(tokens, Sampling(1.0, 9, stop_line=MARKED)) == ">> 4\nmore"
    assert stop_criteria.text(tokens[:5], Sampling(1.0, 9, stop_line=MARKED)) == ">> 4"
