"""`dojang eval`: evaluates a model on held-out problems, and compares two evaluations.

evaluate_model  `evaluate(config) -> EvalResult`: the evaluation itself, for the command and for Python
command         `dojang eval`: runs it with progress, prints and writes the results
options         its options that become settings
cases           command line -> one RunConfig per dataset and number of shots
evaluator       loads the model into an engine, generates and grades
samples         samples.jsonl: every completion with its verdict
report          tables and charts
comparison      differences of two evaluations, with intervals and p-values
"""
