"""An environment and an agent of two turns, for runs that are killed."""

import random
import time

import httpx

import dojang
from dojang.environments.agent_workflow import AgentClient


class SecondTry(dojang.Environment):
    """A second try, after a pause of random length."""

    def reset(self, problem: dojang.Problem) -> tuple[dojang.Message, ...]:
        self.question = problem.messages[-1].content
        return problem.messages

    async def step(self, reply: dojang.Reply) -> object:
        time.sleep(random.uniform(0, 0.005))  # the order in which episodes go on must not matter
        verdict = await self.grade(reply.text)
        if verdict.outcome == dojang.Outcome.ACCEPTED or reply.turns_left == 0:
            return verdict
        return self.question


def ask_twice(problem: dojang.Problem, client: AgentClient) -> str:
    """An agent with the same two turns, over HTTP."""
    messages: list[dict[str, str]] = [{"role": each.role, "content": each.content} for each in problem.messages]
    reply: dict[str, str] = {}
    for _ in range(2):
        body = {"model": client.model, "messages": messages}
        headers = {"Authorization": f"Bearer {client.api_key}"}
        answer = httpx.post(f"{client.base_url}/chat/completions", json=body, headers=headers, timeout=60.0)
        reply = answer.raise_for_status().json()["choices"][0]["message"]
        messages = [*messages, reply, {"role": "user", "content": "Are you sure?"}]
    return reply["content"]
