"""Where the parts of a run live: in this process, or in processes of a Ray cluster."""
