"""`dojang explain`: states what went well in a run and what did not, from its metrics and rollouts.

diagnose            `diagnose(record) -> Diagnosis`: the verdict and the findings, the cause before its consequences
findings            Finding, Diagnosis: typed results
record              RunRecord: metrics, settings and rollouts of a run; missing files and metrics are no error
trends              change of a metric over a run, against its noise
held_out            change of held-out accuracy with its interval
failure_rules       errors, judge errors, log-prob mismatch
completion_rules    truncated completions, run-on completions, completions without an answer, length drift
signal_rules        groups with equal rewards, entropy collapse
optimization_rules  learning rate too small or too large, stale samples
reward_rules        format only, reward hacking, unrelated rewards, overfitting, too few tests, learned nothing
cost_rules          stages that wait for each other
report              text and JSON of a diagnosis
command             `dojang explain`
"""
