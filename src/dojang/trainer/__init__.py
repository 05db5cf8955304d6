"""Groups -> gradient: batching, log-probs, optimizer, schedule, saving."""
