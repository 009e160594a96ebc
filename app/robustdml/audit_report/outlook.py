"""How many labels `robustdml apply` would change or leave out, and how many of these are probably right."""

from collections import Counter

from robustdml.audit.auditor import NO_CLASS, WRONG
from robustdml.audit_report.findings import Finding, clean_labels
from robustdml.config import CORRECT, DROP

# Share of the samples from which on leaving them out needs a person's word.
MUCH = 0.3
# A class that receives this share of the proposals, so many times its share of the samples, and so many proposals.
LARGE_SHARE, TIMES, MANY = 0.1, 5, 10


def expected_right(gone: list[Finding]) -> float:
    """How many of these labels are right, by their own probabilities."""
    return sum(one.probability for one in gone)


def left_out(findings: list[Finding], kept: dict[int, Finding]) -> list[Finding]:
    """Findings that are not kept."""
    return [one for row, one in enumerate(findings) if row not in kept]


def outlook(findings: list[Finding]) -> list[str]:
    """Lines on what `drop` and `correct` would keep, which of them is advised, and classes that take too much."""
    kept = {use: clean_labels(findings, use) for use in (DROP, CORRECT)}
    gone = left_out(findings, kept[DROP])
    if not gone:
        return [f"apply would keep all {len(findings):,} samples.", *attractors(findings)]
    changed = sum(one.label != findings[row].label for row, one in kept[CORRECT].items())
    lines = [
        f"apply --use drop would keep {len(kept[DROP]):,} of {len(findings):,} samples and leave out {len(gone):,}, of "
        f"which about {expected_right(gone):,.0f} have a right label.",
        f"apply --use correct would keep {len(kept[CORRECT]):,}, {changed:,} of them under another label.",
    ]
    if expected_right(gone) > 0.2 * len(gone) or len(gone) > MUCH * len(findings):
        lines.append("Advice: decide on the suspects by hand; dropping them all would cost many right labels.")
    elif changed > len(gone) / 2:
        lines.append("Advice: correct, since most proposals are sure.")
    else:
        lines.append("Advice: drop.")
    return [*lines, *attractors(findings)]


def attractors(findings: list[Finding]) -> list[str]:
    """Warnings of classes that receive more proposals than their size explains."""
    proposed = Counter(
        one.proposed for one in findings if one.verdict in (WRONG, NO_CLASS) and one.proposed != one.label
    )
    sizes, total = Counter(one.label for one in findings), sum(proposed.values())
    return [
        f"Class {name!r} of {sizes[name]:,} samples receives {count:,} of {total:,} proposals: look at it before you "
        "believe them."
        for name, count in proposed.most_common()
        if count >= max(MANY, LARGE_SHARE * total, TIMES * total * sizes[name] / len(findings))
    ]
