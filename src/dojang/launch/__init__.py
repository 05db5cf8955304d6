"""Starting jobs on several machines: a Ray cluster on the hosts of a job, and what runs on its head.

`command.py` begins; `head.py` and `worker.py` are what a host does, by its role. Nothing here trains.
"""
