"""The life of a run: from what a user typed to a finished run directory, its summary and the exported model."""
