"""dojang's rewards in the hands of TRL's own GRPOTrainer: what it passes in, and what it makes of what comes back."""

import asyncio
import json
import math
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.rows import to_row
from dojang.integrations.reward_functions import TrlReward, as_trl_reward
from dojang.models import resolve
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.types import Problem

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed here; make test-trl has it"),
    pytest.mark.filterwarnings("default"),  # TRL's and its libraries' are theirs to mend
    pytest.mark.slow,
]

STEPS, GROUP = 2, 4
SUM = json.dumps({"private": [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]})
ADDS = "```python\nprint(sum(map(int, input().split())))\n```"
THREE = "```python\nprint(3)\n```"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the tests has a `vllm` in it, which TRL would take for vLLM."""
    tests = str(Path(__file__).resolve().parents[1])
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != tests])


class Watched:
    """A reward function, and what it was called with."""

    def __init__(self, reward: Callable[..., list[float | None]], name: str) -> None:
        self.__name__ = name
        self.calls: list[tuple[dict[str, Any], list[float | None]]] = []
        self._reward = reward

    def __call__(self, **given: Any) -> list[float | None]:
        found = self._reward(**given)
        self.calls.append((given, found))
        return found


def train(folder: Path, rows: Sequence[dict[str, Any]], rewards: list[Any], **options: Any) -> list[dict[str, Any]]:
    """A short run of TRL's trainer; returns its log, one entry for each step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2 * GROUP,
        num_generations=GROUP,
        max_completion_length=64,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-5,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        seed=0,
    )
    trainer = GRPOTrainer(
        model=resolve("dojang-tiny"),
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_list(list(rows)),
        **options,
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def problems() -> list[Problem]:
    return ArithmeticConfig(train_size=8).load("train")


def scripted(*texts: str) -> Callable[..., dict[str, Any]]:
    """In the place of the model: these completions, in turn."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        asked = [tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"] for each in prompts]
        said = [
            [*tokenizer(texts[place % len(texts)])["input_ids"], tokenizer.eos_token_id] for place in range(len(asked))
        ]
        return {"prompt_ids": asked, "completion_ids": said, "logprobs": [[-1.0] * len(each) for each in said]}

    return rollout


def test_prepared_rows_and_the_answer_line(tmp_path: Path) -> None:
    rows = [to_row(each, ability="math", split="train", index=at) for at, each in enumerate(problems())]
    reward = Watched(as_trl_reward("answer_line"), "answer_line")
    log = train(tmp_path, rows, [reward])
    assert len(log) == len(reward.calls) == STEPS
    task = AnswerLineConfig().make({})
    known = {each.id: each for each in problems()}
    for (given, found), entry in zip(reward.calls, log, strict=True):
        texts = [turns[-1]["content"] for turns in given["completions"]]
        names = [info["id"] for info in given["extra_info"]]
        verdicts = [asyncio.run(task.grade(known[name], text)) for name, text in zip(names, texts, strict=True)]
        assert found == [verdict.reward for verdict in verdicts]
        assert entry["rewards/answer_line/mean"] == pytest.approx(sum(filter(None, found)) / len(found))
        assert entry["answer_line/format"] == pytest.approx(sum(each.parts["format"] for each in verdicts) / len(found))
    assert sum(sum(filter(None, found)) for _, found in reward.calls) > 0  # the model knows the format


def test_maths_and_the_answer_line_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    rows = [{"prompt": _turns(each), "solution": str(each.reference)} for each in problems()]
    maths = as_trl_reward({"name": "maths", "timeout_s": 30}, reference="solution")
    line = as_trl_reward({"name": "answer_line", "rewards": {"correct": 1.0}}, reference="solution")
    watched = [Watched(maths, "maths"), Watched(line, "line")]
    log = train(tmp_path, rows, list(watched))
    for (_, one), (_, other) in zip(watched[0].calls, watched[1].calls, strict=True):
        assert one == other  # both read "The final answer is 12"
    assert all("rewards/maths/mean" in entry and "maths/accuracy" in entry for entry in log)


def test_programs_are_run(tmp_path: Path) -> None:
    reward = as_trl_reward({"name": "code", "language": "python3"}, reference="tests", judge={"workers": 1})
    rows = [{"prompt": [{"role": "user", "content": f"Add two numbers {at}."}], "tests": SUM} for at in range(4)]
    log = train(tmp_path, rows, [reward], rollout_func=scripted(ADDS, THREE, "I cannot.", "```python\n1 / 0\n```"))
    reward.close()
    for entry in log:
        assert entry["rewards/code/mean"] == pytest.approx((1.0 + 0.5 - 1.0 + 0.0) / 4)
        assert (entry["code/accuracy"], entry["code/fraction"]) == (0.25, 0.375)
        assert math.isfinite(entry["loss"])


def test_unjudged_completions_are_left_out_of_training(tmp_path: Path) -> None:
    """TRL gives it no advantage, and leaves it out of the means."""
    odd = as_trl_reward(_Fails(), reference="tests", name="odd")
    rows = [{"prompt": [{"role": "user", "content": f"Say {at}."}], "tests": SUM} for at in range(4)]
    log = train(tmp_path, rows, [odd], rollout_func=scripted("right", "wrong", "fail", "fail"))
    for entry in log:
        assert entry["rewards/odd/mean"] == entry["reward"] == pytest.approx(0.5)
        assert entry["odd/accuracy"] == 0.5
        assert math.isfinite(entry["loss"])


def test_keywords_judge_texts(tmp_path: Path) -> None:
    words = as_trl_reward({"name": "keywords", "required": ["answer"]}, reference="rules")
    assert isinstance(words, TrlReward)
    rules = [{"required": ["final"], "forbidden": None}, {"required": None, "forbidden": ["final"]}]
    rows = [{"prompt": _turns(each), "rules": rules[at % 2]} for at, each in enumerate(problems())]
    log = train(tmp_path, rows, [words], rollout_func=scripted("the final answer"))
    # Half of the problems want both words (1), half of them forbid one (1 - 1).
    assert sum(entry["reward"] for entry in log) / STEPS == pytest.approx(0.5)


class _Fails:
    """A task whose machinery fails for some answers."""

    def problems(self, split: str) -> list[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Any:
        from dojang.types import Outcome, Verdict

        if text == "fail":
            return Verdict(Outcome.JUDGE_ERROR, None, detail="gone")
        right = text == "right"
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right))


def _turns(problem: Problem) -> list[dict[str, str]]:
    return [{"role": each.role, "content": each.content} for each in problem.messages]
