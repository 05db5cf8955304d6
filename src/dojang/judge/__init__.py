"""The online judge: runs untrusted programs against tests inside a sandbox and returns a verdict.

Pool (in the trainer's process)
  pool.py               JudgePool, the judge of this machine: caches, duplicate submissions, verdicts
  byte_cache.py         LRU cache of compiled programs and test suites
  worker_pool.py        threads and queue: one worker process per thread, lanes served in turn
  worker_handle.py      one worker process: start, send a submission, stop
  supervised_worker.py  a worker process under its supervisor: start, messages, end
  python_session.py     interactive Python session in a separate worker
  host_capabilities.py  isolation, compiler and interpreter found on this machine
  languages.py          the languages: cpp17, cpp20, python3
  checkers.py           comparison of a program's output with the expected output

Agents with a shell
  shell_sandbox.py      a sandbox for shell commands, with files copied in and out
  verifier.py           runs a task's verifier apart from the agent's code

Sandbox (other processes)
  sandbox/limits.py     CPU, idle and memory limits of judged programs; sandbox/__init__.py maps the rest

Toolchains
  toolchain.py          g++: found, its files listed, its commands built
  headers.py            precompiled C++ headers
  libraries.py          shared libraries of an ELF file
  interpreter.py        the Python interpreter for judged programs

Judge as an HTTP service
  service.py            routes
  admission.py          admission control (bounded queue) and Prometheus metrics
  server.py             listening, signals, draining
  client.py             RemoteJudge: sends submissions to services, with retries
  circuit_breaker.py    choice of the service; skips services that fail
  json_schema.py        JSON of submissions, test suites and judgements
  sandbox_fusion.py     SandboxFusion's /run_code
  execution.py          one run without tests, for /run_code

For people
  config.py             the `judge` section of a configuration
  problem_file.py       problem files of `dojang judge run`
  report.py             a judgement as text
  output_diff.py        expected and actual output side by side
  selftest.py, selftest_programs.py   `dojang judge selftest`
"""
