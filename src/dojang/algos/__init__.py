"""Group -> advantages; tokens -> loss. One algorithm, one file."""
