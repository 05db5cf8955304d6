"""`dojang eval`: measures a model on held-out problems, and compares two evaluations."""
