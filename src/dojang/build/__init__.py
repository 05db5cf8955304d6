"""Builds the objects of a run from its RunConfig: in this process, or on a Ray cluster."""
