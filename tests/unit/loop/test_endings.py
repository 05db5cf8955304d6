from collections.abc import Callable

from dojang.loop.endings import Endings, count_endings
from dojang.tasks.answers import answer_line_end
from dojang.types import Group, Problem, Sample


def test_completions_are_counted_by_how_they_end(problem: Problem, make_sample: Callable[..., Sample]) -> None:
    samples = (
        make_sample(text="so\n#### 7"),
        make_sample(text="so\n#### 7\n."),  # no text
        make_sample(text="so\n#### 7\nHuman: more", finish="length"),
        make_sample(text="#### 7\nI hope this helps"),
        make_sample(text="so we", finish="length"),
        make_sample(text="#### 7\nHuman: more", role="tester", finish="length"),
    )
    endings = count_endings([Group(problem, 0, samples[:2]), Group(problem, 1, samples[2:])], answer_line_end)
    assert endings == Endings(samples=5, cut=2, after_answer=2, cut_after_answer=1)
    assert endings.metrics() == {"response/text_after_answer": 0.4, "response/cut_after_answer": 0.2}


def test_a_task_that_does_not_say_where_answers_end_has_only_cut_ones(
    problem: Problem, make_sample: Callable[..., Sample]
) -> None:
    group = Group(problem, 0, (make_sample(text="#### 7\nmore", finish="length"),))
    assert count_endings([group], lambda text: None) == Endings(samples=1, cut=1)
    assert count_endings([], lambda text: None).metrics() == {}
