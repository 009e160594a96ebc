"""Fused losses for deep metric learning with very many classes and wrong labels."""

__version__ = "0.1.0"
