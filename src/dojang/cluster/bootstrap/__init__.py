"""Starts a Ray cluster on the hosts of a job: `dojang launch ray-cluster`, run identically on every host.

Ray's own `ray symmetric-run` does not suffice: its workers exit without the command's exit code, SIGTERM ends the head
at once instead of reaching the command, and a worker cut off for a while does not rejoin. Nor does it name missing
hosts, and its `ray stop` ends all Ray processes of the host or, after SIGKILL, none.

start_cluster.py       the command: finds this host's role and returns the job's exit code
options.py             command-line options, and the result of a job
topology.py            hosts of the job, its head, and this host
slurm.py               hosts from Slurm's environment variables
sagemaker_env.py       hosts from SageMaker's resourceconfig.json or SM_* variables
head.py                the head: start Ray, wait for workers, run the command, report the result
worker.py              a worker: run a Ray node until the head reports the end
rendezvous.py          the head's server: which hosts have joined
head_connection.py     a worker's client of that server
messages.py            their protocol: JSON lines and authentication
wait_for_nodes.py      waits until Ray counts a live node on every host
node_check.py          lists live Ray nodes, in a separate process
ray_node.py            Ray's processes on this host
supervised_process.py  a process that ends with this one, with all its descendants
subreaper.py           the small parent process behind it
stop_signals.py        SIGTERM, SIGINT and SIGHUP as a flag
network.py             addresses, free ports, NCCL and EFA variables
prometheus_config.py   a prometheus.yml for all hosts
"""
