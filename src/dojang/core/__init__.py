"""Basics that every package may use: errors, paths, the run directory, checksums, settings sections."""
