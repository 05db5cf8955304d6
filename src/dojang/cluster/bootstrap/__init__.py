"""Starts a Ray cluster on the hosts of a job: `dojang launch ray-cluster`, run identically on every host.

start_cluster.py   the command: finds this host's role, ends as the job does
topology.py        hosts of the job, which of them is the head; slurm.py, sagemaker_env.py read it from the environment
rendezvous.py      the head waits for its hosts; head_connection.py is the other side; messages.py the protocol
head.py, worker.py what a host does in its role
ray_node.py        the Ray node of this host; node_check.py and wait_for_nodes.py ask Ray which nodes are alive
run_command.py     runs the job's command on the head; subreaper.py, supervised_process.py leave no orphans
"""
