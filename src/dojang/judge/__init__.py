"""Runs programs nobody trusts against tests, and says what became of them."""
