"""Scikit-learn's digits, as they are and with labels drawn wrong: the auditor and cleanlab.

    python -m experiments.bench.audit_digits

Prints what is flagged of the digits as they are, the lowest first, and F1 of each tool's own cut.
"""

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from robustdml.audit import LabelAuditor

RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
MODELS = {"logistic regression": LogisticRegression(max_iter=200), "20 neighbours": KNeighborsClassifier(20)}


def main() -> None:
    warnings.simplefilter("ignore")
    from cleanlab.filter import find_label_issues  # of the extra [audit]

    X, truth = load_digits(return_X_y=True)
    auditor = LabelAuditor().fit(X, truth)
    flagged = np.flatnonzero(auditor.issues_)
    print(f"as they are: {len(flagged)} of {len(truth)} flagged")
    for row in flagged[np.argsort(auditor.label_quality_[flagged])]:
        said = f"right with {auditor.label_quality_[row]:.3f}, likeliest {auditor.proposed_labels_[row]}"
        print(f"  {row}: a {truth[row]}, {said}, {auditor.verdicts_[row]}")
    for rate in RATES:
        random = np.random.default_rng(0)
        wrong = random.random(len(truth)) < rate
        labels = np.where(wrong, (truth + random.integers(1, 10, len(truth))) % 10, truth)
        found = {"auditor": LabelAuditor().fit(X, labels).issues_}
        for name, model in MODELS.items():
            probabilities = cross_val_predict(model, X / 16, labels, cv=5, method="predict_proba")
            found[f"cleanlab, {name}"] = find_label_issues(labels, probabilities, n_jobs=1)
        scores = {name: 2 * (mask & wrong).sum() / (mask.sum() + wrong.sum()) for name, mask in found.items()}
        print(f"{rate:.0%} wrong: {', '.join(f'{name} {score:.3f}' for name, score in scores.items())}")


if __name__ == "__main__":
    main()
