"""The losses of the Proxy-Anchor family as loops over floats, the oracle of the references."""

import math


def cosine(a, b):
    product = sum(i * j for i, j in zip(a, b, strict=True))
    lengths = math.sqrt(sum(i * i for i in a)) * math.sqrt(sum(i * i for i in b))
    return product / lengths if lengths else 0.0


def proxy_terms(X, P, sets, exponent):
    """log(1 + Σ weight · e^exponent) for every proxy; None where the set {x: sets(x, p) > 0} is empty."""
    terms = []
    for p, proxy in enumerate(P):
        members = [x for x in range(len(X)) if sets(x, p) > 0]
        total = sum(sets(x, p) * math.exp(exponent(cosine(X[x], proxy), x, p)) for x in members)
        terms.append(math.log(1 + total) if members else None)
    return terms


def mean_of_nonempty(terms):
    terms = [term for term in terms if term is not None]
    return sum(terms) / len(terms) if terms else 0.0


def mean_of_all(terms):
    return sum(term or 0.0 for term in terms) / len(terms)


def proxy_anchor(X, P, labels, alpha, margin, weights):
    positive = proxy_terms(X, P, lambda x, p: weights[x] * (labels[x] == p), lambda s, x, p: -alpha * (s - margin))
    negative = proxy_terms(X, P, lambda x, p: weights[x] * (labels[x] != p), lambda s, x, p: alpha * (s + margin))
    return mean_of_nonempty(positive) + mean_of_all(negative)


def smooth_proxy_anchor(X, P, c, alpha, margin, beta, threshold, weights):
    def w(x, p):
        return 1 / (1 + math.exp(-beta * (c[x][p] - threshold)))

    def in_positive(x, p):
        return weights[x] * w(x, p) if c[x][p] > threshold else 0.0

    def in_negative(x, p):
        return 0.0 if c[x][p] > threshold else weights[x] * (1 - w(x, p))

    positive = proxy_terms(X, P, in_positive, lambda s, x, p: -alpha * (s - margin))
    negative = proxy_terms(X, P, in_negative, lambda s, x, p: alpha * (s + margin))
    return mean_of_nonempty(positive) + mean_of_nonempty(negative)


def adaptive_proxy_anchor(X, P, labels, margins, alpha, regularization, negative_margin, weights):
    """Margins per class, a list of C."""

    def m(x, p):
        return margins[p if negative_margin == "proxy" else labels[x]]

    positive = proxy_terms(
        X, P, lambda x, p: weights[x] * (labels[x] == p), lambda s, x, p: -alpha * (s - margins[labels[x]])
    )
    negative = proxy_terms(X, P, lambda x, p: weights[x] * (labels[x] != p), lambda s, x, p: alpha * (s + m(x, p)))
    regulariser = regularization * len(margins) / sum(margins)
    return mean_of_nonempty(positive) + mean_of_all(negative) + regulariser
