"""Adapters to other trainers: dojang's tasks as TRL and veRL reward functions."""
