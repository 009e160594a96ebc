"""The functions of the von Mises–Fisher distribution to 50 digits, from series unlike the package's."""

from functools import cache
from typing import NamedTuple

import mpmath as mp

DIGITS = 50


class Exact(NamedTuple):
    log_0f1: mp.mpf
    peak: mp.mpf
    log_i: mp.mpf
    ratio: mp.mpf
    ratio_derivative: mp.mpf


@cache
def exact(v: float, kappa: float) -> Exact:
    """All five functions at one point, kappa > 0: the power series up to a few times v, Hankel's beyond."""
    # Hankel's terms grow to about e^(v²/2κ) before they shrink, and cancel.
    by_powers = kappa <= max(500, 10 * v)
    digits = DIGITS if by_powers else DIGITS + int(v * v / (2 * kappa))
    with mp.workdps(digits):
        order, k = mp.mpf(v), mp.mpf(kappa)
        log_i = power_series if by_powers else hankel_series
        first, next_one = log_i(order, k), log_i(order + 1, k)
        ratio = mp.exp(next_one - first)
        g = first - order * mp.log(k / 2) + mp.loggamma(order + 1)
        return Exact(g, k - g, first, ratio, 1 - ratio**2 - (2 * order + 1) / k * ratio)


def power_series(v, kappa):
    """log Σ (κ/2)^(2n+v) / (n! Γ(n+v+1))."""
    z, term, total, n = kappa * kappa / 4, mp.mpf(1), mp.mpf(1), 0
    while term > total * mp.eps:
        n += 1
        term *= z / (n * (v + n))
        total += term
    return v * mp.log(kappa / 2) - mp.loggamma(v + 1) + mp.log(total)


def hankel_series(v, kappa):
    """log of e^κ/√(2πκ) Σ (−1)^n a_n(v)/κ^n, DLMF 10.40.1; e^(−2κ) is left out."""
    term, total, n = mp.mpf(1), mp.mpf(1), 0
    while abs(term) > abs(total) * mp.eps:
        n += 1
        term *= -(4 * v * v - (2 * n - 1) ** 2) / (8 * n * kappa)
        total += term
    return kappa - mp.log(2 * mp.pi * kappa) / 2 + mp.log(total)
