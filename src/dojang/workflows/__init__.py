"""One problem -> a graded group."""
