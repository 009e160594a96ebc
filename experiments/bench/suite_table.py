"""Sizes of the named data sets, and retrieval by their untouched features.

    python -m experiments.bench.suite_table [NAME …] --store experiments/results/data.json

Images go through the frozen backbone that is theirs. Of a file that is there the sets named are measured again. A name
that lacks what it is read from is left out, with the reason.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.data.splits import VALIDATION
from robustdml.config import TrainingConfig
from robustdml.data import Split, load_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.networks.preparation import prepare
from robustdml.retrieval import retrieval_metrics


def sizes(split: Split) -> dict[str, int]:
    return {"classes": split.num_classes, "samples": len(split)}


def facts(name: str) -> dict[str, Any]:
    """Sizes, and Recall@1 and MAP@R of the untouched features on the test classes."""
    data = load_data(name)
    test = prepare(TrainingConfig(), data, torch.device("cpu")).data.test
    features = np.asarray(test.inputs)
    metrics = retrieval_metrics(features, test.labels)
    of_class = np.concatenate([np.bincount(split.labels) for split in (data.train, data.test)])
    return {
        "kind": NAMED[name].kind,
        "training": sizes(data.train),
        "test": sizes(data.test),
        "of a class": [int(of_class.min()), int(of_class.max())],
        "features": features.shape[1],
        "Recall@1": round(metrics["precision_at_1"], 3),
        "MAP@R": round(metrics["mean_average_precision_at_r"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [name for name in NAMED if not name.endswith(VALIDATION)]
    parser.add_argument("names", nargs="*", metavar="NAME", default=every, help="data sets (default: all)")
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    stored = json.loads(given.store.read_text()) if given.store and given.store.exists() else {"data": {}}
    for name in given.names:
        try:
            stored["data"][name] = facts(name)
        except UsageError as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        print(name, stored["data"][name], flush=True)
    stored["data"] = {name: stored["data"][name] for name in every if name in stored["data"]}
    if given.store:
        given.store.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
