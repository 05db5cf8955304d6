"""Looking at a run through its directory, while it goes on or later.

records.py    reads a run directory: configuration, metrics, rollouts
"""
