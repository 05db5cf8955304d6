"""The Python API. `import dojang` exports its functions; the command line runs the same code (runs, evaluation, judge).

training.py    train, resume: a run from a recipe or from Python objects -> RunResult
result.py      RunResult: metrics, rollouts, models and chart of a run directory
evaluating.py  evaluate: a model on rows or a dataset -> EvalResult
sampling.py    sample: completions of prompts
episodes.py    play_episode: one episode of an environment -> its turns and rewards
judging.py     judge_program, grade
session.py     Session: sample, forward_backward, optim_step, publish, save, for loops of your own
settings.py    arguments -> the tree of settings that RunConfig validates
blocking.py    runs blocking calls in scripts, threads and notebooks
"""
