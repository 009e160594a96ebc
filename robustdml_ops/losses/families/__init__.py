"""Base classes of the losses: what all share, and one for anchors, classes and pairs each."""
