"""What runs outside the trainer: a supervisor, a worker in its jail, and the programs it judges.

Imported by a bare interpreter, so the standard library only.
"""
