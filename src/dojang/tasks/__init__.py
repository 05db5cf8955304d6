"""Tasks: grade a completion of a problem (Problem + text -> Verdict) and compute its reward.

section                base class of task settings: what a task needs (a judge, worker processes)
base                   base classes of tasks: problems by split, reward functions
answer_line            one number on a line with ####: GSM8K, arithmetic
answers                reads and compares that number
maths                  numbers and formulas, compared by math-verify
math_verify_process    worker process for maths
code                   programs, run by the judge
extract                extracts the program from a completion
stop_lines             stop conditions: where completions end because their answer is complete
keywords               texts that must mention certain things
keyword_rules          its rules
phrases                finds terms in a text
exact_match            completions equal to the reference
reasoning_gym          puzzles scored by their generator
reasoning_gym_process  worker process for reasoning_gym
reward_functions       the weighted sum of reward functions, without a reference answer
environment            environments that give all rewards themselves
custom                 a user's task
rewards                weighted reward functions
reward_settings        settings of reward functions
reward_signatures      adapters for reward functions of TRL and veRL
gsm8k_post             reward functions of the AWS post on GSM8K
worker_pool            worker processes with time limits
worker_process         main loop of a worker process
splits                 checks of a task on some problems, before a run
mutation               mutated programs, for audits
trivial_programs       trivial programs, for audits
wrong_answers          wrong answers, for audits
"""
