"""`dojang plan`: checks a recipe and estimates its memory, time and cost on a machine.

command.py          the command
options.py          its options
checks.py           checks of data, prompt lengths and rewards
estimate.py         memory, time and cost of a configuration on machines
advice.py           problems found, and settings that save memory
checkpointed_layers.py  fewest layers with gradient checkpointing that fit
plan_report.py      the report as text and JSON
layout.py           which processes run on which machines
gpu_split.py        splits GPUs between trainers and engines
tokens_per_step.py  tokens of a step
memory_use.py       bytes on each device
kv_cache_memory.py  bytes of the KV cache
answer_lengths.py   distribution of completion lengths
update_work.py      FLOPs and bytes of an update on a GPU
speed.py            seconds of decoding and updates
cost.py             seconds of a step; hours and USD of a run
efficiency.py       measured constants of speed
overlap.py          gain of loop.mode=overlap or stream
shapes.py           sizes of models, from config.json
instances.py        instances with GPUs, memory and prices
this_machine.py     this machine as an instance
"""
