"""The command line. Each command imports its modules only when it runs.

main.py        the `dojang` command: train, eval, export, track, dashboards, plan, doctor, bench
cli_look.py    `dojang show`, `view`, `explain`, `report`
cli_judge.py   `dojang judge`; run_judge.py does its work
cli_data.py    `dojang data`
cli_env.py     `dojang env`; print_episode.py prints its episodes
cli_launch.py  `dojang launch`
cli_serve.py   `dojang serve`; serve_rollouts.py and serve_policy.py do its work
option_group.py  shared arguments, and options as dataclasses
track.py       `dojang track`
doctor.py      `dojang doctor`
bench.py       `dojang bench`
"""

from dojang.commands.main import app, main

__all__ = ["app", "main"]
