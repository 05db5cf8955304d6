"""Builds the objects of a run from its RunConfig.

assemble.py          the composition root: data, task, judge, policies -> loop.run.Run
prepare.py           checks settings, loads data, builds task and algorithms: all before a model is loaded
preflight.py         checks of packages, architectures and the run directory
kv_cache_check.py    checks that the KV cache holds a whole sequence
fp8_check.py         checks that the model and the device can compute in FP8
local.py             one policy in this process: model, tokenizer, engine, trainer
ray.py               one policy on a Ray cluster
ray_judges.py        the judge on a Ray cluster
ray_workers.py       rollout workers on a Ray cluster
rollout_worker.py    rollout workers in other processes
worker_config.py     settings of a rollout worker
model_description.py  compares models and tokenizers of trainer and rollout workers
serve_worker.py      the work of one of them
vocabulary.py        bytes of tokens, for readers of the run directory
workflows.py         training and evaluation workflows
sampling.py          sampling parameters of training and evaluation
benchmarks.py        further evaluation sets (eval.benchmarks)
prompt_lengths.py    refuses or drops overlong prompts
multiple_answers.py  finds problems with several right answers
distiller.py         the teacher of a distillation run
sft.py               rows of supervised fine-tuning
grader.py            grades completions outside a run, from any thread
prepare_dataset.py   `dojang data prepare`
"""
