"""Agents as rollouts: functions and programs, their rewards, and failures that are no rewards."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from transformers import PreTrainedTokenizerBase

import commands
import dojang
from dojang.core.errors import ConfigError
from dojang.core.in_process import register
from dojang.environments.agent import AgentConfig
from dojang.environments.agent_workflow import AgentClient
from dojang.environments.base import Step
from dojang.types import Group, Outcome, Problem, Sampling, Verdict
from policy_clients import policy_of
from scripted_engine import ScriptedEngine

Play = Callable[..., Group]


class ExactTask:
    """Accepts the reference."""

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        right = text == problem.reference
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right), parts={"exact": float(right)})


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> Play:
    """Runs a group of agents with scripted replies."""

    def run(
        agent: Callable[..., Any] | None = None,
        reply: Callable[[str, int, Sampling], str] = lambda prompt, index, sampling: "the answer is 7",
        *,
        group_size: int = 2,
        context: int | None = None,
        problems: int = 0,
        **settings: Any,
    ) -> Any:
        if agent is not None:
            settings["make_with"] = register(agent)
        config = AgentConfig.model_validate({"timeout_s": 20, **settings})
        policy = policy_of(ScriptedEngine(tokenizer, reply), tokenizer, **({"context": context} if context else {}))
        workflow = config.make(ExactTask(), {"policy": policy}, group_size)

        async def batch() -> list[Group]:
            return await asyncio.gather(*(workflow.run(problem, 3 + at) for at in range(max(problems, 1))))

        groups = asyncio.run(batch())
        return groups if problems else groups[0]

    return run


def ask(client: AgentClient, *texts: str, **options: Any) -> str:
    """Asks the policy about each text, in one conversation; returns the last reply."""
    messages: list[Any] = []
    with openai.OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as api:
        for text in texts:
            messages.append({"role": "user", "content": text})
            reply = api.chat.completions.create(model=client.model, messages=messages, **options)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
    return str(messages[-1]["content"])


def test_a_plain_function_is_a_rollout(play: Play, tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    def agent(problem: Problem, client: AgentClient, bonus: float) -> float:
        ask(client, problem.messages[0].content, "are you sure?")
        return bonus

    group = play(agent, options={"bonus": 0.75})
    assert [(each.index, each.reward, each.verdict.outcome) for each in group.samples] == [
        (0, 0.75, Outcome.WRONG),
        (1, 0.75, Outcome.WRONG),
    ]
    sample = group.samples[0]
    assert tokenizer.decode(sample.tokens[sample.mask].tolist()) == "the answer is 7<|end|>" * 2
    assert [(each.role, each.reward) for each in sample.turns] == [("assistant", 0), ("user", 0), ("assistant", 0.75)]


def test_an_async_function_may_return_a_text_that_the_task_grades(play: Play, problem: Problem) -> None:
    async def agent(problem: Problem, client: AgentClient) -> str:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as api:
            messages: list[Any] = [{"role": "user", "content": "what?"}]
            reply = await api.chat.completions.create(model=client.model, messages=messages)
            return reply.choices[0].message.content or ""

    group = play(agent, lambda prompt, index, sampling: str(problem.reference) if sampling.prompt_index % 2 else "no")
    outcomes = [(each.verdict.outcome, each.reward, dict(each.verdict.parts)) for each in group.samples]
    assert outcomes == [(Outcome.WRONG, 0.0, {"exact": 0.0}), (Outcome.ACCEPTED, 1.0, {"exact": 1.0})]


def test_an_agent_may_post_its_reward(play: Play) -> None:
    import httpx

    def agent(problem: Problem, client: AgentClient) -> None:
        ask(client, "what?")
        httpx.post(client.reward_url, json={"reward": 0.5, "solved": True, "parts": {"style": 2}}).raise_for_status()

    (sample,) = play(agent, group_size=1).samples
    assert (sample.reward, sample.verdict.outcome, sample.verdict.parts) == (0.5, Outcome.ACCEPTED, {"style": 2})


def hang(problem: Problem, client: AgentClient) -> float:
    ask(client, "what?")
    time.sleep(8)
    return 1.0


def fail(problem: Problem, client: AgentClient) -> float:
    ask(client, "what?")
    raise ValueError("my mistake")


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (fail, "ValueError: my mistake"),
        (hang, "took longer than workflow.timeout_s=4"),
        (lambda problem, client: ask(client, "x") and None, "returned None and posted no reward"),
        (lambda problem, client: ask(client, "x") and float("nan"), "reward nan"),
        (lambda problem, client: ask(client, "x") and np.array([1.0]), "which is not a finite number"),
        (lambda problem, client: ask(client, "x") and Step(reward=None), "reward None"),  # type: ignore[arg-type]
        (lambda problem, client: ask(client, "x") and [problem.messages[0]], "neither a reward nor an answer"),
        (lambda problem, client: 1.0, "has sent no request"),
    ],
)
def test_a_failure_of_the_agent_is_no_reward(play: Play, agent: Callable[..., Any], reason: str) -> None:
    group = play(agent, timeout_s=4 if agent is hang else 60, group_size=1)
    assert group.samples == ()
    (error,) = group.judge_errors
    assert reason in error
    asked = "no request" not in reason
    assert bool(group.unjudged[0].mask.any()) is asked, "what was sampled is recorded"


def test_a_context_or_a_number_of_turns_that_is_used_up_has_the_reward_so_far(play: Play) -> None:
    def endless(problem: Problem, client: AgentClient) -> float:
        ask(client, *["x" * 40] * 50)
        return 1.0

    (sample,) = play(endless, group_size=1, context=300).samples
    assert (sample.reward, sample.finish, sample.verdict.outcome) == (0.0, "length", Outcome.WRONG)
    assert "do not fit the context" in sample.verdict.detail
    (sample,) = play(endless, group_size=1, max_turns=3).samples
    assert sum(each.role == "assistant" for each in sample.turns) == 3
    assert "workflow.max_turns=3" in sample.verdict.detail


@pytest.mark.parametrize("wrong", ["outage", "refused", "trace"])
def test_a_failure_after_a_conversation_was_shortened_is_no_reward(play: Play, wrong: str) -> None:
    """The context was used up once, which is not what ended the episode."""

    def agent(problem: Problem, client: AgentClient) -> dojang.Step:
        with pytest.raises(openai.BadRequestError, match="do not fit the context"):
            ask(client, *["x" * 40] * 50)
        if wrong == "refused":
            with pytest.raises(openai.BadRequestError, match="temperature"):
                ask(client, "in short?", temperature=0.1)
        if wrong == "trace":
            return dojang.Step(reward=1.0, done=True, training_trace={"turns": "none"})
        if wrong == "outage":
            ask(client, "in short?")
        raise ConnectionError("backend down")

    group = play(agent, group_size=1, context=300)
    assert group.samples == ()
    assert all(("turns" if wrong == "trace" else "backend down") in each for each in group.judge_errors)


def test_several_prompts_of_one_request_wait_for_the_other_agents_once(play: Play) -> None:
    def agent(problem: Problem, client: AgentClient) -> float:
        with openai.OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as api:
            for _ in range(2):
                reply = api.completions.create(model=client.model, prompt=["one", "two", "three"])
        return float(len(reply.choices))

    group = play(agent, group_size=3)
    assert [each.reward for each in group.samples] == [3.0] * 18
    assert [(each.index, each.turn) for each in group.samples] == [(at, part) for at in range(3) for part in range(6)]


def test_a_training_trace_says_what_is_trained(play: Play) -> None:
    """As OpenEnv's harnesses return it: without the requests that are no work of the agent."""
    import httpx

    def trace_of(client: AgentClient) -> Any:
        url = client.reward_url.removesuffix("reward") + "training_trace"
        return httpx.get(url, headers={"authorization": f"Bearer {client.api_key}"}).raise_for_status().json()

    def agent(problem: Problem, client: AgentClient) -> dojang.Step:
        ask(client, "a title")
        ask(client, "what?", "are you sure?")
        trace = trace_of(client)
        trace["turns"] = trace["turns"][-1:]
        return dojang.Step(reward=1.0, done=True, training_trace=trace)

    def confused(problem: Problem, client: AgentClient) -> dojang.Step:
        ask(client, "what?")
        trace = trace_of(client)
        trace["turns"][0]["completion_token_ids"][0] += 1
        return dojang.Step(reward=1.0, done=True, training_trace=trace)

    (sample,) = play(agent, group_size=1).samples
    first, _, second = sample.turns
    assert not sample.mask[: second.start].any()
    assert sample.mask[second.start :].all()
    assert (first.role, second.role, sample.reward) == ("assistant", "assistant", 1.0)
    (error,) = play(confused, group_size=1).judge_errors
    assert "has not sampled" in error


def test_evaluations_ignore_the_sampling_that_agents_ask_for(
    tokenizer: PreTrainedTokenizerBase, problem: Problem
) -> None:
    async def agent(problem: Problem, client: AgentClient) -> float:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as api:
            messages: list[Any] = [{"role": "user", "content": "what?"}]
            await api.chat.completions.create(model=client.model, messages=messages, temperature=0.5)
        return 1.0

    config = AgentConfig(make_with=register(agent))
    policy = policy_of(ScriptedEngine(tokenizer, lambda *_: "7"), tokenizer)
    train = asyncio.run(config.make(ExactTask(), {"policy": policy}, 1).run(problem, 0))
    assert "temperature=0.5: rollouts of this run are sampled with temperature=1" in train.judge_errors[0]
    (sample,) = asyncio.run(config.make_eval(ExactTask(), policy, 1).run(problem, 0)).samples
    assert (sample.reward, sample.verdict.detail) == (1.0, "ignored temperature=0.5")


def test_a_failure_of_the_engine_fails_the_run(play: Play) -> None:
    def broken(prompt: str, index: int, sampling: Sampling) -> str:
        raise MemoryError("no memory")

    with pytest.raises(MemoryError):
        play(hang, broken)


def test_agents_of_a_batch_are_answered_together_in_a_fixed_order(play: Play) -> None:
    order: list[tuple[int, int]] = []

    def reply(prompt: str, index: int, sampling: Sampling) -> str:
        order.append((prompt.count("<|assistant|>"), sampling.prompt_index))
        return "7"

    def agent(problem: Problem, client: AgentClient) -> float:
        ask(client, "a", "b", "c")
        return 1.0

    play(agent, reply, group_size=3, problems=2)
    assert order == sorted(order)
    assert len(order) == 18
    order.clear()
    groups = play(agent, reply, group_size=3, problems=2, max_concurrent=2)
    assert all(len(group.samples) == 3 for group in groups)
    pairs = [order[at : at + 6] for at in range(0, 18, 6)]
    assert all(each == sorted(each) and len({place for _, place in each}) == 2 for each in pairs), order


PROGRAM = """
import json, os, sys, urllib.request
problem = json.load(open(os.environ["DOJANG_PROBLEM"]))
def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
body = {"model": os.environ["OPENAI_MODEL"], "messages": problem["messages"]}
reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]["content"]
"""


def program(folder: Path, end: str) -> tuple[str, ...]:
    (folder / "agent.py").write_text(PROGRAM + end)
    return (sys.executable, "-S", str(folder / "agent.py"))


@pytest.mark.parametrize(
    ("end", "reward", "outcome"),
    [
        ("print('working'); print(reply)", 1.0, Outcome.ACCEPTED),
        ("print(json.dumps({'answer': reply}))", 1.0, Outcome.ACCEPTED),
        ("print('nothing')", 0.0, Outcome.WRONG),
        ("print(json.dumps({'reward': 0.25, 'solved': True}))", 0.25, Outcome.ACCEPTED),
        ("post(os.environ['DOJANG_REWARD_URL'], {'reward': 0.5})", 0.5, Outcome.WRONG),
    ],
)
def test_a_program_is_a_rollout(
    play: Play, tmp_path: Path, problem: Problem, end: str, reward: float, outcome: Outcome
) -> None:
    (sample,) = play(None, lambda *_: str(problem.reference), command=program(tmp_path, end), group_size=1).samples
    assert (sample.reward, sample.verdict.outcome) == (reward, outcome)


def test_a_program_does_not_see_the_reference(play: Play, tmp_path: Path, problem: Problem) -> None:
    end = f"print(json.dumps(problem), file=open({str(tmp_path / 'seen')!r}, 'w')); print(reply)"
    play(None, command=program(tmp_path, end), group_size=1)
    import json

    seen = json.loads((tmp_path / "seen").read_text())
    assert seen == {
        "id": problem.id,
        "messages": [{"role": each.role, "content": each.content} for each in problem.messages],
        "columns": {},
    }


LEAVES_CHILD = (
    "import subprocess, time; child = subprocess.Popen(['sleep', '600']); open({path!r}, 'w').write(str(child.pid)); "
)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("sys.exit('no luck')", "exited with code 1: no luck"),
        ("time.sleep(600)", "took longer than workflow.timeout_s=3"),
        ("print('{\"reward\": NaN}')", "must be a number"),
        ("", "posted no reward"),
        ("os.kill(os.getpid(), 9)", "exited with code -9"),
    ],
)
def test_a_program_that_fails_has_no_reward_and_leaves_no_process(
    play: Play, tmp_path: Path, end: str, reason: str
) -> None:
    start = LEAVES_CHILD.format(path=str(tmp_path / "child"))
    timeout_s = 3 if "timeout_s" in reason else 60
    group = play(None, command=program(tmp_path, start + end), group_size=1, timeout_s=timeout_s)
    assert group.samples == ()
    assert reason in group.judge_errors[0]
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not alive(child))


TRAINER = """
import asyncio, sys
from dojang.environments.agent import AgentConfig
from dojang.environments.agent_process import run_program
from dojang.environments.agent_workflow import AgentClient
from dojang.types import Message, Problem
config = AgentConfig(command=("/bin/sh", "-c", f"sleep 600 & echo $! > {sys.argv[1]}; wait"))
client = AgentClient("http://127.0.0.1:1/v1", "key")
asyncio.run(run_program(config, Problem("p", "tests", (Message("user", "x"),), "7"), client))
"""


def test_programs_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    with commands.Popen([sys.executable, "-c", TRAINER, str(tmp_path / "child")]) as trainer:
        wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
        child = int((tmp_path / "child").read_text())
        assert alive(child)
        trainer.kill()
    wait_until(lambda: not alive(child))


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set one of workflow.make_with and workflow.command"),
        ({"make_with": "a:b", "command": ("c",)}, "set one of"),
        ({"command": ("c",), "options": {"a": 1}}, "workflow.options are for"),
        ({"make_with": "a:b", "columns": ("x",)}, "workflow.columns is for"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentConfig.model_validate(settings)


def test_an_agent_that_is_not_there_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        AgentConfig(command=("no-such-program",)).check_problems(ExactTask(), [])
    with pytest.raises(ConfigError, match="cannot import 'no_such_module'"):
        AgentConfig(make_with="no_such_module:agent").check_problems(ExactTask(), [])
