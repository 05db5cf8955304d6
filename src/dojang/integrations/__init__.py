"""Adapters to other trainers.

reward_functions   dojang's tasks as TRL and veRL reward functions
"""
