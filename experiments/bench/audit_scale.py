"""Seconds and memory of the auditor by the number of samples.

OMP_NUM_THREADS=2 python -m experiments.bench.audit_scale --samples 1000000 --classes 10000
"""

import argparse
import resource
import time

import numpy as np

from robustdml.audit import LabelAuditor

_BLOCK = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    means = random.normal(size=(given.classes, given.width)).astype(np.float32)
    truth = np.arange(given.samples) % given.classes
    features = np.empty((given.samples, given.width), np.float32)
    for start in range(0, given.samples, _BLOCK):
        rows = slice(start, min(start + _BLOCK, given.samples))
        features[rows] = means[truth[rows]] + random.normal(size=features[rows].shape)
    wrong = random.random(given.samples) < 0.3
    labels = np.where(wrong, random.integers(0, given.classes, given.samples), truth)
    start = time.perf_counter()
    issues = LabelAuditor().fit(features, labels).issues_
    seconds = time.perf_counter() - start
    wrong = labels != truth
    score = 2 * (issues & wrong).sum() / (issues.sum() + wrong.sum())
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sizes = f"{given.samples:,} × {given.width}, {given.classes:,} classes"
    print(f"{sizes}: {seconds:.1f} s, {megabytes:,.0f} MB, F1 {score:.3f}")


if __name__ == "__main__":
    main()
