"""An environment of two turns, for runs that are killed: a second try, after a pause of random length."""

import random
import time

import dojang


class SecondTry(dojang.Environment):
    def reset(self, problem: dojang.Problem) -> tuple[dojang.Message, ...]:
        self.question = problem.messages[-1].content
        return problem.messages

    async def step(self, reply: dojang.Reply) -> object:
        time.sleep(random.uniform(0, 0.005))  # the order in which episodes go on must not matter
        verdict = await self.grade(reply.text)
        if verdict.outcome == dojang.Outcome.ACCEPTED or reply.turns_left == 0:
            return verdict
        return self.question
