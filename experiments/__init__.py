"""The experiments behind the claims: data sets, noise models, the comparison of all methods, the demo, benchmarks."""

PROGRAM = "python -m experiments"
