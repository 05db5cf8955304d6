"""Run by OpenEnv's interpreter: an agent behind OpenEnv's capture server, whose engine is dojang's policy server.

    python openenv_capture.py BASE_URL KEY PORT

Prints the TrainingTrace of the agent's two turns with a tool, without that of a title.
"""

import json
import sys
from typing import Any

import httpx
from openenv.core.harness.capture import CaptureServer, to_training_trace
from openenv.core.harness.capture.export import export_session
from openenv.core.harness.capture.sessions import Upstream

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def main() -> None:
    url, key, port = sys.argv[1:]
    capture = CaptureServer(llm_url=url, model="policy", port=int(port), api_key=key, max_output_tokens=16)
    capture.start()
    try:
        upstream = Upstream(llm_url=url, model="policy", api_key=key)
        session = capture.registry.create(upstream=upstream, capture_level="tokens", purpose="train")
        headers = {"authorization": f"Bearer {session.session_id}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", headers=headers, timeout=60) as http:

            def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
                body = {"model": "policy", "messages": messages, **more}
                answer = http.post("/chat/completions", json=body)
                answer.raise_for_status()
                found: dict[str, Any] = answer.json()["choices"][0]["message"]
                return {name: value for name, value in found.items() if value is not None}

            ask({"role": "user", "content": "A title for: the weather"})
            question = {"role": "user", "content": "How is the weather?"}
            reply = ask(question, tools=[TOOL])
            ask(question, reply, {"role": "user", "content": "And tomorrow?"}, tools=[TOOL])
        trace = to_training_trace(session.graph, export_session(session))
    finally:
        capture.stop()
    sys.stdout.write(json.dumps(trace.model_dump()))


if __name__ == "__main__":
    main()
