"""Trainers, engines, rollout workers and judges as Ray actors. Only this package places, starts and ends Ray processes.

placement.py        connects to the cluster; placement groups, nodes, spare CPUs
actors.py           an actor that holds one object; calls to it, and detection of its loss
trainers.py         a Trainer whose ranks are actors
engines.py          a RolloutEngine in an actor
rollout_workers.py  rollout workers in actors
object_store.py     weights in Ray's object store
file_transfer.py    checkpoint files between hosts without a shared disk
judges.py           a Judge over all nodes
judge_pool.py       the pool of judge actors: dispatch and replacement
"""
