"""Groups -> gradient: batching, log-probs, optimiser, schedule, saving."""
