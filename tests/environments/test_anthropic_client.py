"""Anthropic's own client with the policy server. verifiers depends on it, so its interpreter has it."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dojang.types import Completion, Sampling
from policy_clients import Served, policy_of, served, with_tools
from scripted_engine import ScriptedEngine

CLIENT = Path(__file__).with_name("anthropic_client.py")
CALL = 'I look. <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'


class _Engine(ScriptedEngine):
    """Calls a tool, and then answers up to the stop string."""

    def _complete(self, text: str, sampling: Sampling) -> Completion:
        if not sampling.stop:
            return super()._complete(CALL, sampling)
        tokens = tuple(self._tokenizer.encode("It is sunny. END", add_special_tokens=False))
        return Completion(tokens, (-0.5,) * len(tokens), "It is sunny. ", "stop", 0)


def test_messages_tools_streams_stops_and_counts(verifiers_python: str, tokenizer: PreTrainedTokenizerBase) -> None:
    own = with_tools(tokenizer)

    async def talk(at: Served) -> Any:
        command = [verifiers_python, str(CLIENT), at.url, at.key]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    async def run() -> None:
        async with served(policy_of(_Engine(own, lambda prompt, index, sampling: ""), own)) as at:
            found = await talk(at)
            assert found["counted"] == found["input_tokens"] > 0
            assert found["call"] == ["tool_use", "text", "tool_use"]
            assert found["streamed"] == "It is sunny. "
            assert found["stop"] == ["stop_sequence", "END"]
            assert found["refused"]["error"]["type"] == "invalid_request_error"
            assert len(at.session.streams) == 1, "the two requests are one conversation"

    asyncio.run(run())
