"""Datasets: raw rows -> Problems. One file per dataset; add a new dataset as a new file.

section                base class of the `data` section: limit, filters
arithmetic, tiny_functions, tiny_programs     generated problems
tiny_function_kinds    kinds of functions of tiny_functions
episodes               numbered episodes, for environments that make their own problems
gsm8k, gsm8k_files     GSM8K, and its preparation from other layouts
few_shot               few-shot examples
file_section           base class of the next two: their places and held-out rows
files                  custom rows with a prompt template, or messages
in_memory              rows given in Python: lists of dicts, data frames, tables, datasets
prompt_completion      custom rows for supervised fine-tuning
prepared               rows written by `dojang data prepare`
reasoning_gym, reasoning_gym_process          generated puzzles, and the process that makes them
agent_tasks, agent_task                       task folders for agents with a terminal
verifier_rules         lines of a task's verifier that may run files of the agent
verifiers, verifiers_tasks                    tasks of a taskset of verifiers, and the process that reads them
custom                 a user's function
code_contests, deepcoder, deepmath, humaneval, livecodebench, math500, mbpp    published datasets
prepare_rows           published dataset -> prepared rows
rows                   layout of prepared rows (veRL's)
readers, hub           reads Parquet, JSON lines, JSON, CSV and Arrow; datasets on the Hugging Face hub
place                  where a dataset is: path, address or hub id
splits                 files of a split, by their names
messages               prompts as text or messages
subsets                subsets of a dataset
python_tests           tests of Python programs in published datasets
ratings                difficulty tiers by Codeforces rating
decontaminate, overlap                        overlap of training and held-out problems
statement_rules        statements that allow several answers
"""
