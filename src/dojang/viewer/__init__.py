"""Looking at a run through its directory, while it goes on or later.

records.py    reads a run directory: configuration, metrics, rollouts
options.py    options of `dojang show`
samples.py    chooses samples by step, outcome, problem and role
diff.py       answers to the same problems at two steps
show.py       `dojang show`: prints them
"""
