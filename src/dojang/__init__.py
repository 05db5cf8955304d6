"""dojang: reinforcement learning with verifiable rewards.

Importing the package loads nothing heavy; the rooms are imported where they are used.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
