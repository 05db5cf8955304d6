"""Trackers: record the metrics and rollouts of a run, show them, and export them to other services.

registry        every metric: meaning, unit, dashboard panel
metric_rows     the data of the registry
panels          metrics, dashboard panels and rows
file_tracker    writes metrics.jsonl and the rollouts in Parquet
console         progress bar or plain lines in the terminal
completions     completions of an evaluation, as the console shows them
chart           reward.png
multi_tracker   several trackers as one
config          the `track` section
exporter        background threads that export metrics.jsonl, with retry
mlflow, wandb, tensorboard, prometheus, ray, custom    one exporter sink each
dashboards      `dojang dashboards`: files for Grafana and Prometheus
grafana         the Grafana dashboard
alerts          the Prometheus alert rules
"""
