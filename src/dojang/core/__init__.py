"""Basics that every package may import.

errors.py       exceptions and their exit codes
error_list.py   errors of several checks, reported together
paths.py        cache and output directories
run_dir.py      layout of a run directory; atomic writes
run_files.py    files of a run, in a directory or in S3
run_lock.py     lock of a run directory: one process trains there
rollout_schema.py  Arrow schema of its rollout files
mask_secrets.py  masks secrets in environment variables and commands
safe_text.py    text of models, escaped and shortened to print
section.py      base class of configuration sections
progress.py     progress bars in a terminal
interrupt.py    Ctrl-C while a command starts
child_process.py  programs that end with this process
user_code.py    file and line of an exception in the user's code
in_process.py   names for functions given as Python objects
arrays.py       read-only arrays of records
outcomes.py     outcome of a completion, result of a test
checksum.py     checksum over weights
lazy_weights.py  weights that are made one at a time, when they are read
out_of_memory.py  out-of-memory errors of torch, with remedies
cuda_sync.py    waiting for the whole GPU, which must not meet the capture of a graph
output_head.py  float32 logits
sum_metrics.py  sums of metrics by name
hub.py          whether the Hugging Face hub can be reached
keepalive.py    TCP keepalive options
http_service.py  parts of HTTP services
"""
