"""Rollout workers in other processes and on other machines. They connect to the trainer's process, at one port.

messages.py        JSON messages
server.py          routes of the trainer's process: leases, groups, weights
pack_cache.py      encoded weights that are being sent
served_workers.py  the RolloutWorkers of the loop: the server, and workers that the run starts
worker_process.py  worker processes of this machine
client.py          requests of a worker, with retries
download.py        downloads of weights that go on after a cut connection
worker.py          the worker: leases prompts, runs the workflow, delivers groups, loads new weights
"""
