"""Configuration of a run: RunConfig, recipes with overrides, and the documentation of every key."""
