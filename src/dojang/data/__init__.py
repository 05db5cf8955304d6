"""Raw dataset -> Problems. One dataset, one file."""
