"""Rows of length 1 and the Jacobian of that normalisation: what every sweep does to proxies and embeddings."""
