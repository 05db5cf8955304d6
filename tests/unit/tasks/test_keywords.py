"""Texts graded by what they say."""

import asyncio
import time
from typing import Any

import pytest
from pydantic import ValidationError

from dojang.config.recipe import load
from dojang.core.errors import ConfigError, DataError
from dojang.tasks.keywords import KeywordsConfig
from dojang.tasks.phrases import TextMatcher, Within, occur_together
from dojang.types import Message, Outcome, Problem, Verdict

ADVICE = (
    "Take one tablet of lisinopril, an ACE-inhibitor, each morning. Have your blood pressure checked weekly.\n\n"
    "If you feel dizzy, see your doctor; do not stop on your own. The dose depends on renal function."
)


def problem(reference: object = None) -> Problem:
    return Problem("advice/1", "advice", (Message("user", "What should I do?"),), reference)


def grade(settings: dict[str, Any], text: str, reference: object = None) -> Verdict:
    task = KeywordsConfig.model_validate(settings).make({})
    return asyncio.run(task.grade(problem(reference), text))


@pytest.mark.parametrize(
    ("spellings", "text", "found"),
    [
        (["dose"], "The dose matters", True),
        (["dose"], "DOSE", True),
        (["dose"], "doses", False),
        (["dose"], "overdose", False),
        (["dose"], "dose-dependent", True),
        (["blood pressure"], "blood\n  pressure", True),
        (["blood pressure"], "blood and pressure", False),
        (["blood pressure"], "blood\N{NO-BREAK SPACE}pressure", True),
        (["ACE inhibitor", "ACE-inhibitor"], "an ace\N{NON-BREAKING HYPHEN}inhibitor", True),
        (["don't"], "do not and don\N{RIGHT SINGLE QUOTATION MARK}t", True),
        (["C++"], "C++ and more", True),
        (["C"], "C++", True),
        (["Fluß"], "FLUß", True),
        (["efficient"], "e\N{LATIN SMALL LIGATURE FFI}cient", True),
        (["(a+)+"], "aaa", False),
        (["血圧"], "血圧が高い", False),
    ],
)
def test_term_matches_whole_words(spellings: list[str], text: str, found: bool) -> None:
    reading = TextMatcher()
    assert bool(reading.term(spellings).search(reading.normalize(text))) is found


def test_case_and_whole_words_can_be_chosen() -> None:
    assert not TextMatcher(case=True).term(["ACE"]).search("ace")
    assert TextMatcher(whole_words=False).term(["血圧"]).search("血圧が高い")


@pytest.mark.parametrize(
    ("terms", "within", "found"),
    [
        (["tablet", "morning"], "sentence", True),
        (["tablet", "weekly"], "sentence", False),
        (["tablet", "weekly"], "text", True),
        (["dizzy", "own"], "sentence", True),
        (["weekly", "dizzy"], "sentence", False),  # an empty line between them
        (["dose", "renal function"], 5, True),
        (["dose", "renal function"], 4, False),
        (["renal function", "dose"], 5, True),
        (["blood pressure", "weekly"], 4, True),
        (["blood pressure", "weekly"], 3, False),
        (["tablet", "weekly", "dose"], 99, True),
        (["tablet", "nothing"], 99, False),
        (["tablet", "tablet"], 2, True),
    ],
)
def test_terms_occur_together(terms: list[str], within: Within, found: bool) -> None:
    reading = TextMatcher()
    patterns = [reading.term([term]) for term in terms]
    assert occur_together(reading.normalize(ADVICE), patterns, within) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Take a dose, e.g. one, at noon", True),
        ("Take 2.5 mg as a dose at noon", True),
        ("A dose!  Then noon", False),
        ("- the dose\n- the noon", False),
        ("1. dose\n2. noon", False),
        ("the dose\nat noon", True),
        ("Is it a dose? (Noon.)", False),
        ('He said "a dose." Noon came', False),
    ],
)
def test_where_a_sentence_ends(text: str, found: bool) -> None:
    assert occur_together(text, [TextMatcher().term(["dose"]), TextMatcher().term(["noon"])], "sentence") is found


def test_narrowest_window_counts() -> None:
    text = "alpha " + "x " * 50 + "beta gamma alpha " + "x " * 50 + "gamma"
    patterns = [TextMatcher().term([name]) for name in ("alpha", "beta", "gamma")]
    assert occur_together(text, patterns, 3)
    assert not occur_together(text, patterns, 2)


RULES: dict[str, Any] = {
    "required": ["lisinopril", ["ACE inhibitor", "ACE-inhibitor"], {"any_of": "potassium", "weight": 2}],
    "groups": [["tablet", "morning"], {"all_of": ["dose", ["kidney", "renal function"]], "within": 6}],
    "ideas": {"see_somebody": {"phrasings": [r"(see|call|ask) (your|a) (doctor|GP)", "seek help"], "weight": 3}},
    "forbidden": ["guaranteed"],
}


def test_reward_is_the_share_of_satisfied_rules() -> None:
    verdict = grade(RULES, ADVICE)
    assert verdict.parts == {
        "lisinopril": 1.0,
        "ACE inhibitor": 1.0,
        "potassium": 0.0,
        "tablet + morning": 1.0,
        "dose + kidney": 1.0,
        "see_somebody": 1.0,
        "not guaranteed": 1.0,
    }
    assert (verdict.outcome, verdict.passed, verdict.total) == (Outcome.WRONG, 6, 7)
    assert verdict.reward == pytest.approx(7 / 9)
    assert verdict.detail == "not satisfied: potassium"
    full = grade(RULES, ADVICE + " Mind the potassium.")
    assert (full.outcome, full.reward, full.passed, full.detail) == (Outcome.ACCEPTED, 1.0, 7, "")


def test_forbidden_terms_are_subtracted_and_never_accepted() -> None:
    text = ADVICE + " Mind the potassium. Success is guaranteed."
    verdict = grade({**RULES, "accept": 0.5}, text)
    assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, pytest.approx(8 / 9))
    assert verdict.parts["not guaranteed"] == 0.0
    dear = {"required": ["tablet"], "forbidden": [{"any_of": ["guaranteed"], "weight": 5}]}
    assert grade(dear, "a guaranteed tablet").reward == 0.0


def test_accept_and_reward_shape() -> None:
    settings = {"required": ["one", "two", "three", "four"], "accept": 0.75}
    assert grade(settings, "one two").outcome is Outcome.WRONG
    verdict = grade(settings, "one two three")
    assert (verdict.outcome, verdict.reward) == (Outcome.ACCEPTED, 0.75)
    assert grade({**settings, "reward_shape": "all_or_nothing"}, "one two three").reward == 1.0
    assert grade({**settings, "reward_shape": "all_or_nothing"}, "one two").reward == 0.0


@pytest.mark.parametrize("text", ["", " \n", "<think>lisinopril", "<think>lisinopril</think>\n"])
def test_empty_text_is_no_answer(text: str) -> None:
    verdict = grade({"required": ["lisinopril"], "forbidden": ["cure"]}, text)
    assert (verdict.outcome, verdict.reward, verdict.passed, verdict.total) == (Outcome.NO_ANSWER, 0.0, 0, 2)
    assert set(verdict.parts.values()) == {0.0}


def test_thinking_is_not_matched() -> None:
    verdict = grade({"required": ["dose", "noon"]}, "<think>dose, noon</think> At noon.")
    assert verdict.parts == {"dose": 0.0, "noon": 1.0}


def test_rules_in_the_reference() -> None:
    own = {"required": ["noon", ["midnight", "12 am"]], "forbidden": ["now"], "groups": None, "ideas": {"wait": "wait"}}
    verdict = grade({"required": ["dose"]}, "Wait with the dose until noon.", own)
    assert verdict.parts == {"dose": 1.0, "own": pytest.approx(2 / 3)}
    assert sum(weight * value for weight, value in verdict.terms.values()) == pytest.approx(verdict.reward)
    assert (verdict.reward, verdict.passed, verdict.total) == (pytest.approx(3 / 4), 4, 5)
    assert verdict.detail == "not satisfied: midnight"
    assert grade({}, "at noon", ["noon"]).outcome is Outcome.ACCEPTED
    assert grade({"required": ["noon"]}, "at noon", "an answer that came with the dataset").parts == {"noon": 1.0}
    assert grade({}, "at noon", {"required": ["noon", "dose"]}).reward == 0.5


def test_other_rewards_are_added() -> None:
    settings = {"required": ["dose"], "rewards": {"length": {"weight": 0.5, "at_most": 3}}}
    verdict = grade(settings, "a dose")
    assert (verdict.reward, verdict.parts) == (1.5, {"dose": 1.0, "length": 1.0})
    assert verdict.terms == {"dose": (1.0, 1.0), "length": (0.5, 1.0)}
    assert verdict.outcome is Outcome.ACCEPTED


def test_slow_pattern_is_a_judge_error() -> None:
    settings = {"ideas": {"odd": ["(a|aa)+$", "(?:foobarbaz){e<=4}"]}, "timeout_s": 0.3}
    started = time.monotonic()
    verdict = grade(settings, "a" * 100_000 + "b")
    assert time.monotonic() - started < 5
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert verdict.detail == "advice/1: the patterns took longer than timeout_s=0.3"


def test_accents_are_normalized() -> None:
    letters = "cafe\N{COMBINING ACUTE ACCENT} " * 400  # cut somewhere, and never between a letter and its accent
    assert TextMatcher().normalize(letters) == "caf\N{LATIN SMALL LETTER E WITH ACUTE} " * 400
    started = time.perf_counter()
    grade({"required": ["dose"]}, "a" + "\N{COMBINING ACUTE ACCENT}\N{COMBINING CEDILLA}" * 100_000)
    assert time.perf_counter() - started < 3  # several seconds, if it were done at once


def test_long_texts_take_linear_time() -> None:
    settings = {
        "required": ["x y z", "blood pressure"],
        "groups": [{"all_of": ["x", "y", "z"], "within": 3}, ["x", "q"]],
    }
    started = time.monotonic()
    grade(settings, "x " * 200_000 + "." * 100_000 + "\n" * 100_000 + "'" * 100_000)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("noon", r"neither the recipe nor the reference 'noon' has rules for the text \(required, groups, ideas\)"),
        (7, "neither the recipe nor the reference 7 has rules"),
        ("{required: noon}", "looks like rules, but is not JSON"),
        ({"need": ["x"]}, "the reference cannot be read: need: Extra inputs"),
        ({"groups": [["x"]]}, "groups.0.all_of: Tuple should have at least 2 items"),
        ({"ideas": {"a": "("}}, r"ideas.a.phrasings.0: '\(' is not a regular expression"),
        ({"required": [""]}, "required.0.any_of.0: String should have at least 1 character"),
        ({"forbidden": ["x"]}, "neither the recipe nor the reference {.*} has rules for the text"),
        (None, "neither the recipe nor the reference None has rules"),
    ],
)
def test_reference_without_rules_is_refused(reference: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        KeywordsConfig().make({"train": [problem(reference)], "test": []})
    verdict = grade({}, "anything", reference)
    assert verdict.outcome is Outcome.JUDGE_ERROR


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"required": ["dose", "dose"]}, "'dose': two rules or rewards have the same name"),
        ({"required": ["own"]}, "'own': two rules"),
        ({"required": ["length"], "rewards": {"length": {"at_most": 3}}}, "'length': two rules"),
        ({"required": [{"any_of": ["x"], "weight": 0}]}, "greater than 0"),
        ({"groups": [{"all_of": ["x", "y"], "within": 1}]}, "greater than or equal to 2"),
        ({"groups": [{"all_of": ["x", "y"], "within": "page"}]}, "'text' or 'sentence'"),
        ({"accept": 0}, "greater than 0"),
    ],
)
def test_invalid_configuration_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KeywordsConfig.model_validate(settings)


def test_keywords_in_a_recipe() -> None:
    task = "task={name: keywords, required: [dose, {any_of: [noon, midday], weight: 2}], groups: [[dose, noon]]}"
    config = load("quickstart", [task])
    assert isinstance(config.task, KeywordsConfig)
    with pytest.raises(
        ConfigError, match=r"task.required.0.any_off: no such key; did you mean task.required.0.any_of\?"
    ):
        load("quickstart", ["task={name: keywords, required: [{any_off: [dose]}]}"])
