"""PRISM, Liu et al.: which labels of a batch are probably clean."""
