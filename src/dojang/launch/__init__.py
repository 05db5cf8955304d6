"""Starting jobs on other machines: a Ray cluster on the hosts of a job, and jobs of Amazon SageMaker's.

`command.py` begins a cluster; `head.py` and `worker.py` are what a host does, by its role. `submission.py` submits a
job, `inside.py` is what it runs on the head of its cluster.
"""
