"""Configuration of a run.

run_config.py           RunConfig: all sections, and checks across them
rollout_config.py       rollout settings, and the union of engines
recipe.py               recipes (YAML) and key=value overrides -> RunConfig
overrides.py            applies key=value overrides to the tree of settings
eval_config.py          datasets, tasks and evaluation settings
distillation_checks.py  checks of distillation and supervised fine-tuning
environment_checks.py   checks of settings that go with an environment, or only with one
renamed_keys.py         old names of settings
key_docs.py             type, default and help of every setting
"""
