"""PRISM by python_ref's equations, and by lists where the paper has none."""

import math

import torch
from torch.nn.functional import normalize

from python_ref import prism


class Oracle:
    """The settings are those of PRISM; the estimator is the paper's."""

    def __init__(self, num_classes, similarity, threshold, noise_rate=None, dtype=torch.float64, **settings):
        self.dtype = dtype
        self.C, self.similarity, self.threshold, self.R = num_classes, similarity, threshold, noise_rate
        self.window = settings.get("window", 20)
        self.capacity = settings.get("memory_size")
        self.vmf_start = settings.get("vmf_start")
        self.fixed = settings.get("fixed_threshold")
        self.own_copies = settings.get("num_samples") is None
        self.unseen = settings.get("unseen") or "skip"
        self.bias_correction = settings.get("bias_correction") or "none"
        self.rows, self.observed, self.quantiles = [], set(), []
        self.past = [[] for _ in range(num_classes)]
        self.iteration = 0

    def step(self, X, labels, ids, proxies):
        """One call of PRISM: keep, scores, threshold."""
        judged = [self._score(X, labels, ids, proxies, i) for i in range(len(X))]
        scores = torch.tensor([score for score, _ in judged], dtype=torch.float64)
        known = torch.tensor([known for _, known in judged], dtype=torch.bool)
        m = self._threshold(scores, labels, known)
        self.observed |= set(labels.tolist())
        self.iteration += 1
        return prism.is_clean(scores, m, known), scores, m

    def enqueue(self, X, labels, ids, keep):
        if self.capacity is not None:
            batch = zip(normalize(X.to(self.dtype), dim=1), labels.tolist(), ids.tolist(), keep.tolist(), strict=True)
            self.rows = [*self.rows, *((x, y, i) for x, y, i, kept in batch if kept)][-self.capacity :]

    def _score(self, X, labels, ids, proxies, i):
        """Score of one sample, and whether its class is known."""
        x, y = X[i : i + 1].to(self.dtype), labels[i : i + 1]
        if self.similarity == "proxy":
            known = int(y) in self.observed
            P = proxies.to(self.dtype).reshape(self.C, -1, X.shape[1])
            return (float(prism.log_p_clean(prism.proxy_similarity(x, P), y)) if known else 0.0), known
        own = () if self.own_copies else (int(y), int(ids[i]))
        rows = [(v, label) for v, label, id in self.rows if (label, id) != own]
        known = any(label == y for _, label in rows)
        if not known:
            return 0.0, False
        V, y_V = torch.stack([v for v, _ in rows]), torch.tensor([label for _, label in rows])
        if self.similarity == "average" or self.iteration < self.vmf_start:
            T = prism.average_similarity(x, V, y_V, self.C)
        else:
            T = prism.vmf_similarity(x, V, y_V, self.C, self.bias_correction)
        return float(prism.log_p_clean(T, y, self.unseen)), True

    def _threshold(self, scores, labels, known):
        if self.threshold == "fixed":
            return torch.tensor(math.log(self.fixed), dtype=torch.float64)
        if self.threshold == "per-class":
            return self._per_class(scores, labels, known)
        if self.threshold == "otsu":
            if self.iteration < self.vmf_start:
                return torch.full(labels.shape, -math.inf, dtype=torch.float64)
            return torch.minimum(prism.otsu_cut(scores, known), self._per_class(scores, labels, known))
        quantile = prism.top_r_threshold(scores, self.R)
        if self.threshold == "top-r":
            return quantile
        if known.sum() >= math.floor(round(self.R * len(scores), 9)):
            self.quantiles.append(quantile)
        last = self.quantiles[-self.window :]
        if not last:
            return torch.tensor(-math.inf, dtype=torch.float64)
        return prism.smooth_top_r_threshold(torch.stack(last), self.window)

    def _per_class(self, scores, labels, known):
        thresholds = []
        for y in labels.tolist():
            past = sorted(self.past[y][-self.window :])
            rank = round(self.R * (len(past) + 1), 9)
            if self.R == 1:
                thresholds.append(math.inf)
            elif rank < 1 or not past:
                thresholds.append(-math.inf)
            else:
                low = math.floor(rank)
                below, above = past[min(low, len(past)) - 1], past[min(low + 1, len(past)) - 1]
                thresholds.append(below + (rank - low) * (above - below))
        for score, y, is_known in zip(scores.tolist(), labels.tolist(), known.tolist(), strict=True):
            if is_known:
                self.past[y].append(score)
        return torch.tensor(thresholds, dtype=torch.float64)
