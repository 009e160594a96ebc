"""Steps over the classes of the batch and a random sample of the others."""
