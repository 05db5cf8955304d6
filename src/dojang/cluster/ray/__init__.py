"""A run on a Ray cluster. Only this folder asks Ray to place, start and end processes."""
