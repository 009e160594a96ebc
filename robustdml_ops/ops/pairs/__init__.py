"""Sums over pairs of samples: per anchor, over the candidates of its class and over those of the others."""
