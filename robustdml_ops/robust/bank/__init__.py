"""The memory bank of past embeddings."""
