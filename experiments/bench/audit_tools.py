"""Auditors that `experiments.bench.audit` compares: ours, cleanlab, confident learning, a vote of neighbours."""

import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from robustdml.audit import LabelAuditor
from robustdml.audit.features import principal_rows
from robustdml.audit_report.learning import learn_embeddings
from robustdml.audit_report.samples import AuditSamples
from robustdml.config import TrainingConfig

FOLDS = 5
NEIGHBOURS = 20


class Answer(NamedTuple):
    """What a tool says of each sample."""

    quality: np.ndarray  # how right its label is
    issues: np.ndarray  # whether it is wrong
    proposed: np.ndarray  # what it should be


@dataclass(frozen=True)
class Problem:
    """Features and labels, numbers from 0 on, each of which is there."""

    features: np.ndarray
    labels: np.ndarray
    seed: int


# What several tools work on, such as the probabilities of one model: made once, and its seconds count for each of them.
Basis = Callable[[Problem], np.ndarray]


@dataclass(frozen=True)
class Tool:
    """A tool: what it works on, and what it makes of that and the labels."""

    basis: Basis
    judge: Callable[[Problem, np.ndarray], Answer]


def learnt_embeddings(problem: Problem, runs: int = 1) -> np.ndarray:
    names = [str(place) for place in range(len(problem.labels))]
    classes = tuple(str(label) for label in range(int(problem.labels.max()) + 1))
    samples = AuditSamples("bench", names, problem.labels, classes, problem.features)
    with tempfile.TemporaryDirectory() as folder:
        return learn_embeddings(samples, TrainingConfig(seed=problem.seed), runs, Path(folder), "cpu", lambda *_: None)


def untouched(problem: Problem) -> np.ndarray:
    return problem.features


def logistic(problem: Problem) -> np.ndarray:
    # Of C = 0.3, 3 and 30 the best on validation letters: AUC 0.936, 0.986 and 0.976 with half of the labels wrong.
    model = LogisticRegression(C=3, max_iter=100)
    rows = principal_rows(problem.features).numpy()
    return cross_val_predict(model, rows, problem.labels, cv=FOLDS, method="predict_proba")


def neighbours(problem: Problem) -> np.ndarray:
    rows = problem.features / np.linalg.norm(problem.features, axis=1, keepdims=True).clip(1e-12)
    model = KNeighborsClassifier(NEIGHBOURS, metric="cosine", algorithm="brute")
    return cross_val_predict(model, rows, problem.labels, cv=FOLDS, method="predict_proba")


def auditor(problem: Problem, features: np.ndarray) -> Answer:
    found = LabelAuditor(features_learnt=features is not problem.features).fit(features, problem.labels)
    return Answer(found.label_quality_, found.issues_, found.proposed_labels_)


def _cleanlab(by: str) -> Callable[[Problem, np.ndarray], Answer]:
    def judge(problem: Problem, probabilities: np.ndarray) -> Answer:
        from cleanlab.filter import find_label_issues  # of the extra [audit], which this bench alone needs
        from cleanlab.rank import get_label_quality_scores

        issues = find_label_issues(problem.labels, probabilities, filter_by=by, n_jobs=1)
        return Answer(get_label_quality_scores(problem.labels, probabilities), issues, probabilities.argmax(1))

    return judge


def datalab(problem: Problem, features: np.ndarray) -> Answer:
    from cleanlab import Datalab  # needs pip install 'cleanlab[datalab]'

    lab = Datalab({"label": problem.labels.tolist()}, label_name="label", verbosity=0)
    # One process: it hands its arrays over by forking, which a process of a fork server does not do.
    alone = {"clean_learning_kwargs": {"find_label_issues_kwargs": {"n_jobs": 1}}}
    lab.find_issues(features=principal_rows(features).numpy(), issue_types={"label": alone})
    found = lab.get_issues("label")
    return Answer(*(found[key].to_numpy() for key in ("label_score", "is_label_issue", "predicted_label")))


def vote(problem: Problem, probabilities: np.ndarray) -> Answer:
    voted = probabilities.argmax(1)
    return Answer(probabilities[np.arange(len(voted)), problem.labels], voted != problem.labels, voted)


TOOLS = {
    "robustdml audit": Tool(learnt_embeddings, auditor),
    "LabelAuditor, untouched features": Tool(untouched, auditor),
    "cleanlab, logistic regression in 5 folds": Tool(logistic, _cleanlab("prune_by_noise_rate")),
    "confident learning, the same regression": Tool(logistic, _cleanlab("confident_learning")),
    "cleanlab, 20 neighbours": Tool(neighbours, _cleanlab("prune_by_noise_rate")),
    "cleanlab's Datalab on features": Tool(untouched, datalab),
    "vote of 20 neighbours": Tool(neighbours, vote),
}


class Outcome(NamedTuple):
    """What a tool says, and what it took."""

    answer: Answer
    seconds: float
    megabytes: float


def run_tools(names: list[str], features: Path, labels: np.ndarray, seed: int) -> dict[str, Outcome | str]:
    """Run tools that share their basis; in place of an outcome why a tool has none. Memory is that of the process."""
    problem = Problem(np.load(features, mmap_mode="r"), labels, seed)
    out: dict[str, Outcome | str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        try:
            basis = TOOLS[names[0]].basis(problem)
        except ValueError as error:
            return dict.fromkeys(names, str(error))
        shared = time.perf_counter() - start
        for name in names:
            start = time.perf_counter()
            try:
                answer = TOOLS[name].judge(problem, basis)
            except (ValueError, ImportError) as error:
                out[name] = str(error)
                continue
            seconds = shared + time.perf_counter() - start
            out[name] = Outcome(answer, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return out
