"""OpenEnv's TrainingTrace: its class reads dojang's traces, and a trace of its capture server is trained on."""

import asyncio
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dojang.core.child_process import run_child
from dojang.environments.policy_server.records import to_record
from dojang.environments.policy_server.training_trace import to_training_trace
from policy_clients import RandomEngine, Served, policy_of, served, talk_openai, with_tools

CAPTURE = Path(__file__).with_name("openenv_capture.py")
VALIDATE = """
import json, sys
from openenv.core.harness import TrainingTrace
trace = TrainingTrace.model_validate(json.load(sys.stdin))
print(json.dumps([turn.node_id for turn in trace.turns]))
"""


def test_openenv_reads_the_trace_of_a_session(openenv_python: str, tokenizer: PreTrainedTokenizerBase) -> None:
    own = with_tools(tokenizer)
    engine, traces = RandomEngine(own), list[Any]()

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            await talk_openai(at, 1, turns=3)
            await at.client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hm"}], n=2)
            traces.append((await at.http.get(f"/v1/sessions/{at.key}/training_trace")).json())
            assert traces[0] == to_training_trace(json.loads(json.dumps(to_record("a", at.session))))

    asyncio.run(run())
    command = [openenv_python, "-c", VALIDATE]
    done = subprocess.run(command, input=json.dumps(traces[0]), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0-0", "0-2", "0-4", "1-0", "2-0"]
    prompts = [tuple(turn["prompt_token_ids"]) for turn in traces[0]["turns"]]
    assert prompts == [*engine.prompts, engine.prompts[-1]]


def test_a_trace_of_openenvs_capture_server_decides_the_loss(
    openenv_python: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """OpenEnv leaves out the request for a title and its probes of the server, so they are not trained on."""
    own = with_tools(tokenizer)
    engine = RandomEngine(own)

    async def capture(at: Served) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [openenv_python, str(CAPTURE), f"{at.url}/v1", at.key, str(port)]
        return json.loads((await asyncio.to_thread(run_child, command, timeout=120)).splitlines()[-1])

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            trace = await capture(at)
            assert len(trace["turns"]) == 2
            before = at.session.streams
            answer = await at.http.post(f"/v1/sessions/{at.key}/reward", json={"reward": 1.0, "training_trace": trace})
            assert answer.status_code == 200, answer.text
            (stream,) = at.session.trained_streams(at.session.result)
            (agent,) = (each for each in before if each.tokens == stream.tokens)
            others = [own.decode(each.tokens) for each in before if each is not agent]
            assert sum("title" in each for each in others) == 1
            assert len(others) > 1, "OpenEnv's probes"
            assert not any("How is the weather?" in each for each in others)
            assert "And tomorrow?" in own.decode(agent.tokens)
            assert sum(each.role == "assistant" for each in agent.turns) == 2
            assert stream.mask == agent.mask
            assert stream.logprobs == agent.logprobs

    asyncio.run(run())
