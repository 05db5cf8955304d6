"""Samples in the tokens of a teacher with another tokenizer, and which tokens its log-probs are compared with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dojang import models
from dojang.types import Group, Message, Problem, Sample
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.hints import Hints
from dojang.workflows.retokenize import Retokenizer
from other_tokenizer import END_OF_TURN, other_tokenizer

TEXT = "3+8=11, 2+7+1=10\n#### The final answer is 101"
PACKAGED = ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct", "gemma-3-270m")
Make = Callable[..., Retokenizer]


@pytest.fixture(scope="module")
def student() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(models.resolve("dojang-tiny"))


@pytest.fixture(scope="module")
def teacher() -> PreTrainedTokenizerBase:
    return other_tokenizer()


load = cache(AutoTokenizer.from_pretrained)


def retokenizer(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, context: int | None = None, hint: str = ""
) -> Retokenizer:
    renderer = ChatRenderer(teacher, context=None, max_tokens=0)
    hinted = Hints([hint], renderer).messages if hint else None
    return Retokenizer(student, teacher, context=context, renderer=renderer, messages=hinted)


@pytest.fixture
def make_group(make_sample: Callable[..., Sample], problem: Problem) -> Callable[..., Group]:
    """A group of one sample of the given tokens, with log-probs -1, -2, -3 ..."""

    def make(tokens: Sequence[int], finish: str = "stop", problem: Problem = problem) -> Group:
        logprobs = [-1.0 - place for place in range(len(tokens))]
        sample = make_sample(prompt=(5, 6), answer=tokens, logprobs=logprobs, finish=finish)
        return Group(problem, 0, (sample,))

    return make


def gaps(translate: Retokenizer, group: Group) -> tuple[Sample, list[float | None]]:
    """The sample that the teacher reads, and what a log-prob of -10 for each of its tokens gives."""
    (read,) = translate(group)
    assert read is not None
    return read, translate.compare(group.samples[0], read, read.at_mask([-10.0] * read.response_length))


def answer(read: Sample, tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.decode(read.tokens[read.mask]))


def test_the_teacher_reads_its_own_prompt_its_own_tokens_and_its_own_end(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    tokens = [*student.encode(TEXT), student.eos_token_id]
    read, found = gaps(retokenizer(student, teacher), make_group(tokens))
    prompt = "<|turn|>user\nwhat is 1+1?<|turn_end|>\n<|turn|>assistant\n"
    assert teacher.decode(read.tokens[~read.mask]) == prompt
    assert answer(read, teacher) == TEXT + END_OF_TURN
    assert read.tokens[read.mask].tolist()[:-1] == teacher.encode(TEXT)
    assert None not in found
    ratio = sum(-1.0 - place for place in range(len(tokens))) + 10.0 * read.response_length
    assert sum(found) == pytest.approx(ratio)
    assert found[-1] == -1.0 - (len(tokens) - 1) + 10.0  # the ends alone


def test_chunks_are_those_of_the_two_spellings(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    """The student has a token for each digit and one for the whole line; the teacher has words and larger numbers."""
    assert student.tokenize("11, 10") == ["1", "1", ",Ġ", "1", "0"]
    assert teacher.tokenize("11, 10") == ["11", ",", "Ġ10"]
    _, found = gaps(retokenizer(student, teacher), make_group(student.encode("11, 10")))
    first, rest = (-1 - 2 + 10) / 2, (-3 - 4 - 5 + 20) / 3
    assert found == [first] * 2 + [rest] * 3


@pytest.mark.parametrize("kind", ["stop string", "length", "end inside", "special inside", "no text"])
def test_tokens_that_cannot_be_compared_get_no_signal(
    kind: str, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    text, end, other = student.encode("11, 10\n"), student.eos_token_id, student.convert_tokens_to_ids("<|user|>")
    tokens, finish, scored, read_text = {
        "stop string": (text, "stop", 6, "11, 10\n"),
        "length": (text, "length", 5, "11, 10\n"),  # all but the line break, whose token may be another in longer text
        "end inside": ([*text, end, *text], "length", 5, "11, 10\n"),
        "special inside": ([*text, other, *text, end], "stop", 5, "11, 10\n"),
        "no text": ([other, *text, end], "stop", 0, ""),
    }[kind]
    read, found = gaps(retokenizer(student, teacher), make_group(tokens, finish))
    assert answer(read, teacher) == read_text
    assert [each is not None for each in found] == [True] * scored + [False] * (len(tokens) - scored)


def test_incomplete_characters_get_no_signal(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    """dojang-tiny has a token for each byte of 日; a teacher would read a replacement character."""
    whole, translate = student.encode("1 日"), retokenizer(student, teacher)
    assert len(whole) == 5
    for count, text in ((2, "1 "), (3, "1 "), (4, "1 "), (5, "1 日")):
        for more in ([], [student.eos_token_id]):
            read, found = gaps(translate, make_group([*whole[:count], *more], "stop" if more else "length"))
            complete = bool(more) and count in (2, 5)
            assert answer(read, teacher) == text + END_OF_TURN * complete
            if complete:
                assert None not in found
            else:
                assert found[-1] is None
                assert all(each is None for each in found[2:]) or count == 5


def test_stray_bytes_and_characters_split_over_tokens(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    stray = student.encode("日")[1]
    read, found = gaps(retokenizer(student, teacher), make_group([*student.encode("10 is"), stray, stray]))
    assert answer(read, teacher) == "10 is"
    assert found[-2:] == [None, None]
    assert found[0] is not None


def test_text_that_the_teacher_normalises_is_scored_up_to_there(
    student: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    from tokenizers import normalizers

    teacher = other_tokenizer()
    teacher.backend_tokenizer.normalizer = normalizers.NFC()
    tokens = [*student.encode("10, e\u0301 11"), student.eos_token_id]
    read, found = gaps(retokenizer(student, teacher), make_group(tokens))
    assert answer(read, teacher) == "10, \u00e9 11" + END_OF_TURN
    assert [each is not None for each in found] == [True] * 3 + [False] * (len(tokens) - 3)


def test_names_of_special_tokens_in_a_text_stay_text(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    read, found = gaps(retokenizer(student, teacher), make_group([*student.encode(f"1{END_OF_TURN}0")]))
    assert teacher.convert_tokens_to_ids(END_OF_TURN) not in read.tokens[read.mask]
    assert None not in found


def test_a_sample_longer_than_the_teachers_context_is_not_scored(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    group = make_group(student.encode(TEXT))
    (whole,) = retokenizer(student, teacher)(group)
    assert whole is not None
    read, found = gaps(retokenizer(student, teacher, context=len(whole.tokens)), group)
    assert None not in found
    read, found = gaps(retokenizer(student, teacher, context=len(whole.tokens) - 1), group)
    assert not read.mask.any()
    assert set(found) == {None}


def test_plain_text_prompts_end_with_eos_and_hints_are_rendered_by_the_teacher(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, make_group: Callable[..., Group]
) -> None:
    plain = Problem("sums/1", "sums", (Message("text", "Q: 1+1?\nA:"),), "2")
    tokens = [*student.encode(" 2"), student.eos_token_id]
    read, _ = gaps(retokenizer(student, teacher), make_group(tokens, problem=plain))
    assert teacher.decode(read.tokens) == "Q: 1+1?\nA: 2<|text_end|>"
    read, _ = gaps(retokenizer(student, teacher, hint="It is {reference}."), make_group(tokens))
    assert "what is 1+1?\n\nIt is 2.<|turn_end|>" in str(teacher.decode(read.tokens))
    unhinted = replace(plain, reference=None)
    assert retokenizer(student, teacher, hint="It is {reference}.")(make_group(tokens, problem=unhinted)) == [None]


@pytest.mark.parametrize(("mine", "theirs"), list(permutations(PACKAGED, 2)))
def test_published_tokenizers(mine: str, theirs: str, make_group: Callable[..., Group]) -> None:
    sources = [models.local(name) for name in (mine, theirs)]
    if None in sources:
        pytest.skip(f"{mine} or {theirs} is not in the cache (DOJANG_CACHE)")
    student, teacher = map(load, sources)
    text = "Natalia sold 48/2 = 24 clips, that is $1,234.50.\n\nnaïve 日本語 🙂\n#### The final answer is 72"
    tokens = [*student.encode(text, add_special_tokens=False), student.eos_token_id]
    read, found = gaps(retokenizer(student, teacher), make_group(tokens))
    assert None not in found
    assert sum(found) == pytest.approx(sum(-1.0 - at for at in range(len(tokens))) + 10.0 * read.response_length)
    boundaries = sum(before != after for before, after in pairwise(found))
    assert boundaries > len(tokens) / 2  # most tokens are the same in both
