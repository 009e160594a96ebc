"""Steps over a share of the classes."""
