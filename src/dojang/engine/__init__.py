"""The built-in inference engine: prompts -> completions with log-probs and the policy version of every token.

config          settings: the base class of engine sections, and TorchEngineConfig
torch_engine    TorchEngine: requests and weight updates, around a background thread
generate_engine  GenerateEngine: slow, on transformers' generate, for other models
scheduler       continuous batching: prefill, decode, preemption
sequence        a request and the sequences of its samples
waiting         the waiting sequences, and the prefixes that they share
kv_cache        the KV cache: pages, the page table, prefilled prefixes
page_pool       free pages, and reference counts of the others
prefix_cache    pages of finished turns
kv_cache_size   budget and pages of the KV cache
backend         CPU or GPU implementations for the scheduler
decode          one decode step; eager runner for any device
cuda_graphs     decode steps as CUDA graphs, and packed prefill, on a GPU
architectures   supported model families; the engine for a config.json
decoder         the transformer
shape           its dimensions and attention settings
layer           weights of one layer
mlp             dense MLP, mixture of experts
attention       prefill and decode attention on a CPU
elementwise     RMS norm, rotary embedding, SwiGLU
linear          fused and packed linear layers
fp8             FP8 matrix products of linear layers
cpu_ops         C++ attention and element-wise operations for a CPU (cpu_ops.cpp)
triton_kernels  Triton kernels for a GPU
sampler         temperature, top-k, top-p, min-p
ngram_drafts    speculative decoding: draft tokens by n-grams
rng             random numbers per sample
stop_criteria   end tokens and stop strings
validate        request validation
weight_update   staged weight updates
"""
