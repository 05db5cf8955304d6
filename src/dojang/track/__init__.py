"""What happened, for people and programs: console, metrics.jsonl, rollouts in Parquet, a chart."""
