"""The commands of the experiments."""
