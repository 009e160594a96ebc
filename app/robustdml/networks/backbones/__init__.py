"""Backbones by name: each makes features (B, F) of images; the embedding layer above them is the same for all."""
