"""Engines of others, and several engines as one: vLLM, OpenAI-compatible servers, pools of replicas."""
