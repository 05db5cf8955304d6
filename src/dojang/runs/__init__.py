"""Training runs, from the command line to the exported model.

training.py  `dojang train`: run directory, signals, restarts, summary
resume.py    settings of a run that starts or resumes, and which may change
environment.py  versions, machine and command of each start
stop.py      requests to stop: signals, or a call from another thread
dry_run.py   `dojang train --dry-run`
summary.py   summary.json, the chart and the closing report
export.py    `dojang export`: a checkpoint as a Hugging Face directory
"""
