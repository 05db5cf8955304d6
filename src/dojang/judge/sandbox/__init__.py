"""Processes outside the trainer: a supervisor, a worker in its jail, and the programs it judges.

Imported by a bare interpreter, so the standard library only.

Limits and runs
  limits.py              CPU, idle and memory limits: waits for a program and kills it at a limit
  run_test.py            runs one test: limits of a run, its result, the second run on a busy machine
  compiling.py           compiles a program
  worker.py              judges a submission: compile, run the tests, compare outputs
  session.py             interactive session: pieces of code in one Python process
  session_driver.py      program of that process
  supervisor.py          starts the worker in its jail, kills and cleans up when either side ends
  cleanup.py             removes scratch directories and cgroups of dead supervisors
  messages.py            messages between pool and worker

Shell sandboxes and verifiers of agents
  shell_jail.py          root file system of a shell sandbox
  shell.py               its worker: commands, files in and out
  process_group.py       limits of all processes of a sandbox together
  file_tree.py           copies of folders that untrusted programs have filled
  output_ends.py         beginning and end of long outputs
  verifier_site.py       rules of Python processes of a verifier: no code of the agent runs in them
  untrusted_client.py    a verifier's way to run the agent's code in another sandbox
  untrusted_server.py    that sandbox's side
  module_server.py       program that imports the agent's modules there

Isolation
  jail.py                namespaces: private root, scratch directory, no network
  syscall_policy.py      seccomp policies: allowed system calls
  bpf.py                 assembles a policy into a seccomp BPF program
  syscalls.py            system call numbers
  cgroups.py             a control group per worker, as a second limit
  linux.py               system calls that Python has no function for
  isolation_probe.py     tries which isolation this machine supports

Processes
  start_process.py       starts a process with rlimits, filter and descriptors
  vfork_exec.py          vfork and exec with a list of system calls in between

Python programs (run in the judging interpreter)
  interpreter_client.py  starts the zygote and asks it to fork
  zygote.py              warm interpreter that is forked for every run
  preload.py             modules imported before the fork, hidden until a program imports them
  startup.py             makes the interpreter look like `python3 main.py`
  frames.py              hides the judge's stack frames from programs
  forks.py               forks and confines a child
  ending.py              runs a program and ends it as Python would
  function_calls.py      assertions in one process about functions in another
  names.py, handles.py   names and remote objects of those assertions
"""
