"""Scores of losses under several noises on several data sets, written to a file of results."""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

import experiments.data  # noqa: F401  # its data sets, by name
from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, load_data
from robustdml.networks.preparation import prepare

RESULTS = Path(__file__).parents[1] / "results"
Noise = TypeVar("Noise")


def write_study(
    name: str,
    command: str,
    description: str | None,
    losses: Iterable[str],
    noises: Mapping[str, Noise],
    score: Callable[[RetrievalData, str, Noise, int], float],
    seeds: int,
    **settings: Any,
) -> None:
    """Write MAP@R, by ``score``, of the data sets of the command line: means and standard errors over the seeds.

    Data sets that the file has and that are not named stay.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("data", nargs="*", default=["hanzi-small", "glosses"], help="as for robustdml train")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / f"{name}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for data_name in arguments.data:
        data = prepare(TrainingConfig(), load_data(data_name), torch.device("cpu")).data
        rows = {}
        for loss in losses:
            values = [[score(data, loss, noise, seed) for seed in range(seeds)] for noise in noises.values()]
            rows[loss] = [[statistics.fmean(of), statistics.stdev(of) / seeds**0.5] for of in values]
            print(data_name, loss, *(f"{mean:.4f}" for mean, _ in rows[loss]), flush=True)
        results[data_name] = {"noises": list(noises), "MAP@R": rows}
        content = {
            "command": command,
            "machine": f"one thread, PyTorch {torch.__version__}",
            "seeds": seeds,
            **settings,
            "results": results,
        }
        write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
