"""What stands behind this repository's own claims: the comparison of all methods, the demo, the benchmarks."""
