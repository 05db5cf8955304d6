"""An environment for the tests of this folder: conversations of up to two turns."""

import dojang


class SecondTry(dojang.Environment):
    """The model may answer again if its first answer is wrong."""

    async def step(self, reply: dojang.Reply) -> str | dojang.Verdict:
        verdict = await self.grade(reply.text)
        if verdict.outcome == dojang.Outcome.ACCEPTED or reply.turns_left == 0:
            return verdict
        return "That is wrong. Answer again."
