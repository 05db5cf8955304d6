"""The drivers: pose, attempt, judge, credit, learn, publish."""
