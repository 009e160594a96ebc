"""Filters and what they keep: PRISM, the memory bank, its distributions, self-paced weights, the confidence head.

They are called over sequences of batches, as in training, beside the oracles of their own tests.
"""

import torch
from hypothesis import strategies as st
from torch.nn.functional import normalize

import python_ref
from python_ref.label_correction import corrected_labels
from robustdml_ops import ops, robust
from tests.fuzz.draws import backends, flags, floats, generator_of, normal, seeds, uniform
from tests.fuzz.oracle import EPSILON, Check, close
from tests.fuzz.trials.batches import Draw, digits
from tests.robust.prism_oracle import Oracle

C, N = 5, 9
storable = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def prism(draw: Draw) -> Check:
    similarity = draw(st.sampled_from(["average", "proxy", "vmf"]))
    threshold = draw(st.sampled_from(["top-r", "smooth-top-r", "per-class", "fixed"]))
    D, generator = draw(st.sampled_from([2, 4, 9])), generator_of(draw(seeds))
    chosen = {"similarity": similarity, "threshold": threshold, "window": draw(st.integers(1, 4))}
    if threshold == "fixed":
        chosen["fixed_threshold"] = draw(st.sampled_from([0.05, 0.5, 1.0]))
    else:
        chosen["noise_rate"] = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    if similarity in ("average", "vmf"):
        chosen["memory_size"] = draw(st.integers(1, 30))
        if draw(flags):
            chosen |= {"num_samples": N, "max_copies": 40}
    if similarity == "average":
        chosen["unseen"] = draw(st.sampled_from(["skip", "zero"]))
    if similarity == "vmf":
        correction = draw(st.sampled_from(["none", "u"]))
        chosen |= {"vmf_start": draw(st.integers(0, 2)), "bias_correction": correction, "estimator": "prism"}
    given = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    backend = draw(backends)

    def judge() -> None:
        ours = robust.PRISM(C, D, memory_dtype=torch.float64, backend=backend, **chosen)
        oracle, centers = Oracle(C, **chosen), normal(generator, C, D)
        for B in given:
            labels = torch.randint(C, (B,), generator=generator)
            # Of any length: the bank keeps directions.
            X = (centers[labels] + normal(generator, B, D)) * torch.exp2(60 * normal(generator, B, 1).round())
            ids = torch.randint(N, (B,), generator=generator)
            proxies = normal(generator, C, 2, D) if similarity == "proxy" else None
            result = ours(X, labels, ids, proxies)
            directions = X / torch.linalg.vector_norm(X, dim=1, keepdim=True)
            keep, scores, m = oracle.step(directions, labels, ids, proxies)
            kappa = float(ours.kappa.max()) if similarity == "vmf" else 1.0
            # Scores are logarithms of shares whose exponents are κ times a cosine; κ itself is off by κ ε/(1 − R̄²).
            off = 64 * EPSILON[torch.float64] * (digits(D) + 1) * (1 + kappa) ** 2
            close("log P_clean", result.log_p_clean, scores, off * (1 + scores.abs()))
            finite = torch.isfinite(m)
            assert torch.equal(torch.isfinite(result.threshold), finite)
            decided = (scores - m).abs() > 8 * off * (1 + scores.abs())
            decided |= ~torch.isfinite(scores - m)
            if not bool((decided | (keep == result.keep)).all()):
                return  # rounding decides who is kept; from here on the banks differ
            assert torch.equal(result.keep[decided], keep[decided]), "another sample is kept"
            if not torch.equal(result.keep, keep):
                return
            ours.enqueue(X, labels, result.keep, ids)
            oracle.enqueue(directions, labels, ids, keep)

    return Check(judge)


def memory_bank(draw: Draw) -> Check:
    capacity, dtype, D = draw(st.integers(1, 20)), draw(storable), draw(st.sampled_from([1, 3, 8]))
    given, generator = draw(st.lists(st.integers(0, 25), max_size=5)), generator_of(draw(seeds))
    backend, of = draw(st.sampled_from([None, "eager"])), draw(floats)

    def judge() -> None:
        bank = robust.MemoryBank(C, D, capacity, dtype, num_samples=N, backend=backend)
        rows: list[tuple[list[float], int, int]] = []
        for B in given:
            # Multiples of 1/8, which all types hold, and sums of which are exact.
            features = (torch.randint(-16, 17, (B, D), generator=generator) / 8).to(of)
            labels, ids = (torch.randint(n, (B,), generator=generator) for n in (C, N))
            keep = uniform(generator, B) < 0.7
            touched = bank.enqueue(features, labels, ids, keep)
            batch = zip(features.double().tolist(), labels.tolist(), ids.tolist(), keep.tolist(), strict=True)
            before, rows = rows, [*rows, *((row, y, i) for row, y, i, kept in batch if kept)][-capacity:]
            changed = {k for k in range(C) if [r for r in before if r[1] == k] != [r for r in rows if r[1] == k]}
            assert changed <= set(touched.tolist()) - {-1}
            for k in range(C):
                own = [row for row, y, _ in rows if y == k]
                total = [sum(column) for column in zip(*own, strict=True)] or [0.0] * D
                assert (bank.sums[k].tolist(), int(bank.counts[k])) == (total, len(own))
            others = bank.without_own_copies(ids, labels, max_copies=capacity)
            for j, (y, i) in enumerate(zip(labels.tolist(), ids.tolist(), strict=True)):
                own = [row for row, label, sample in rows if (label, sample) != (y, i) and label == y]
                assert int(others.counts[j]) == len(own)
                assert others.sums[j].tolist() == ([sum(column) for column in zip(*own, strict=True)] or [0.0] * D)
        filled = int(bank.filled)
        assert filled == len(rows)
        slots = [(int(bank.pointer) - filled + i) % capacity for i in range(filled)]
        assert bank.features.double()[slots].tolist() == [row for row, _, _ in rows]
        assert bank.labels[slots].tolist() == [y for _, y, _ in rows]
        assert (bank.labels == ops.ABSENT).sum() == capacity - filled
        sums = bank.sums.clone()
        bank.recompute()
        assert torch.equal(bank.sums, sums)

    return Check(judge)


def vmf_classes(draw: Draw) -> Check:
    D, generator, backend = draw(st.sampled_from([2, 3, 16])), generator_of(draw(seeds)), draw(backends)
    estimator = draw(st.sampled_from(["newton", "banerjee", "prism"]))
    correction = draw(st.sampled_from(["u", "none", "predictive"]))
    given = draw(st.lists(st.integers(0, 12), max_size=4))

    def judge() -> None:
        bank = robust.MemoryBank(C, D, 15)
        classes = robust.VmfClasses(C, D, estimator, correction, backend=backend)
        for B in given:
            labels = torch.randint(C, (B,), generator=generator)
            classes.refresh(bank, bank.enqueue(normalize(normal(generator, B, D)).float(), labels))
        # Refreshed where a batch touched a class: what a fit of all classes gives, bit for bit.
        fitted = ops.fit_vmf(bank.sums, bank.counts, None, estimator, correction, backend=backend)
        some = bank.counts > 1
        assert torch.equal(classes.kappa[some], fitted.kappa[some])
        assert not classes.kappa[~some].any()
        peak = ops.vmf_log_peak(D, classes.kappa, backend="eager")
        close("log_peak", classes.log_peak, peak.double(), 1e-5 * (1e-3 + peak.double()))

    return Check(judge)


def balanced_self_paced(draw: Draw) -> Check:
    per_class = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
    D, dtype, generator = draw(st.sampled_from([1, 4])), draw(floats), generator_of(draw(seeds))
    solver = draw(st.sampled_from(["exact", "stochastic"]))
    lam, mu = draw(st.sampled_from([0.3, 2.0])), draw(st.sampled_from([0.0, 1.0]))
    steps = draw(st.integers(1, 3))

    def judge() -> None:
        labels = torch.repeat_interleave(torch.arange(len(per_class)), torch.tensor(per_class))
        more = {"steps": 50, "seed": 3} if solver == "stochastic" else {}
        paced = robust.BalancedSelfPaced(labels, lam, 1.2, 4.0, mu, solver=solver, **more)
        age = lam
        for _ in range(steps):
            X = normal(generator, len(labels), D).to(dtype)
            X[:: int(torch.randint(2, 5, (), generator=generator))] = 0
            before = paced.sample_weights.clone()
            assert float(paced.lam) == float(torch.tensor(age, dtype=paced.lam.dtype))
            paced.update(X)
            w = paced.sample_weights
            assert ((w >= 0) & (w <= 1)).all()
            exact = X.double()
            positive, negative = python_ref.bspml.self_paced_terms(exact, labels)
            epsilon = EPSILON[torch.float64 if dtype == torch.float64 else torch.float32]
            # ξ is 1/α log(1 + Σ e^(α…)): what a cosine is off, it is off, and the rounding to its own type.
            off = 2 * digits(D) * epsilon + 64 * EPSILON[paced.positive.dtype] * (1 + positive + negative)
            close("ξ⁺", paced.positive, positive, off)
            close("ξ⁻", paced.negative, negative, off)
            if solver == "exact":
                values = [
                    python_ref.self_paced_objective(v.double(), positive, negative, labels, age, mu)
                    for v in (before, w)
                ]
                assert values[1] <= values[0] + 1e-5 * (1 + values[0].abs()), "the objective rose"
            age = python_ref.bspml.next_age(age, 1.2, 4.0)
            maw, sdaw = python_ref.average_weights(w.double(), labels)
            assert abs(paced.maw - float(maw)) < 1e-5 and abs(paced.sdaw - float(sdaw)) < 1e-5
        ids = torch.randint(len(labels), (7,), generator=generator)
        assert torch.equal(paced.weights(ids), paced.sample_weights[ids])

    return Check(judge)


def confidence_head(draw: Draw) -> Check:
    B, F, K = draw(st.integers(0, 9)), draw(st.integers(1, 7)), draw(st.integers(1, 9))
    dtype, generator = draw(st.sampled_from([torch.float32, torch.float64])), generator_of(draw(seeds))

    def judge() -> None:
        head = robust.ConfidenceHead(F, C, K).to(dtype)
        features = (3 * normal(generator, B, F)).to(dtype)
        weights = [p.detach().double() for p in (head.reduction.weight, head.reduction.bias)]
        weights += [p.detach().double() for p in (head.classifier.weight, head.classifier.bias)]
        truth = python_ref.confidence_head(features.double(), *weights)
        hidden = features.double().abs() @ weights[0].abs().t()
        off = 4 * (F + K + 8) * EPSILON[dtype] * (1 + hidden @ weights[2].abs().t())
        close("the confidences", head(features), truth, off)
        hidden, weight, bias = head.factors(features)
        close("their factors", torch.sigmoid(hidden @ weight.t() + bias), truth, off)
        if B > 1:
            losses = head.fit(features, torch.randint(C, (B,), generator=generator), epochs=1, batch_size=4)
            assert len(losses) == 1 and head.frozen and torch.isfinite(head(features)).all()

    return Check(judge)


def label_correction(draw: Draw) -> Check:
    """The same samples, judged anew a few times beside one bank."""
    similarity, D, B = draw(st.sampled_from(["average", "vmf"])), draw(st.sampled_from([2, 5])), draw(st.integers(0, 9))
    confidence, visits = draw(st.sampled_from([0.0, 0.4, 0.9])), draw(st.integers(1, 3))
    generator, rounds, backend = generator_of(draw(seeds)), draw(st.integers(1, 4)), draw(backends)
    starts = {"vmf_start": 0, "estimator": "prism", "bias_correction": "u"} if similarity == "vmf" else {}

    def judge() -> None:
        chosen = {"threshold": "fixed", "fixed_threshold": 0.5, "memory_size": 30, "memory_dtype": torch.float64}
        prism = robust.PRISM(C, D, similarity, backend=backend, **chosen, **starts)
        correction = robust.LabelCorrection(N, confidence, visits)
        centers, bank_labels = normal(generator, C, D), torch.arange(20) % (C - 1)
        bank = centers[bank_labels] + normal(generator, 20, D)
        prism.enqueue(bank, bank_labels, torch.ones(20, dtype=torch.bool))
        ids, given = torch.randperm(N, generator=generator)[:B], torch.randint(C, (B,), generator=generator)
        before: list[torch.Tensor] = []
        for _ in range(rounds):
            X = centers[torch.randint(C - 1, (B,), generator=generator)] + normal(generator, B, D)
            keep = uniform(generator, B) < 0.4
            fixed = correction(prism, X, given, keep, ids)
            if similarity == "vmf":
                T = python_ref.prism.vmf_similarity(X, bank, bank_labels, C, "u")
            else:
                T = python_ref.prism.average_similarity(X, bank, bank_labels, C)
            shares = T.softmax(1).topk(2).values
            if ((shares[:, 0] - confidence).abs() < 1e-6).any() or (shares[:, 0] - shares[:, 1] < 1e-6).any():
                return  # rounding decides
            labels, kept = given, keep
            if len(before) >= visits - 1:
                counted = before[len(before) - visits + 1 :]
                labels, kept = corrected_labels(T, given, keep, confidence, counted)
            assert torch.equal(fixed.labels, labels) and torch.equal(fixed.keep, kept)
            assert torch.equal(fixed.corrected, kept & ~keep)
            before.append(T.argmax(1))

    return Check(judge)


TRIALS = {
    "LabelCorrection": label_correction,
    "PRISM": prism,
    "MemoryBank": memory_bank,
    "VmfClasses": vmf_classes,
    "BalancedSelfPaced": balanced_self_paced,
    "ConfidenceHead": confidence_head,
}
