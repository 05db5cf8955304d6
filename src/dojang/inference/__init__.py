"""Rollout engines outside of this package's own one, and pools of engines.

config          settings of the engines vllm and remote
vllm            VllmEngine: vLLM in this process
remote          RemoteEngine: `vllm serve` or an OpenAI-compatible server
vllm_base       base of both: requests and weight updates
vllm_protocol   sampling parameters to vLLM, outputs from vLLM
http_client     HTTP connections with timeouts and retries
engine_pool     EnginePool: several replicas as one engine
multi_policy    MultiPolicyEngine: engines of two policies
teacher_server  teacher log-probs from a server, for distillation
"""
