"""Which classes are taken for which, as a matrix: all classes where they are few, else those most confused."""

from collections import Counter
from html import escape

from robustdml.audit_report.findings import Finding

MOST_CLASSES = 40


def confused_classes(pairs: Counter[tuple[str, str]], most: int = MOST_CLASSES) -> list[str]:
    """Choose classes for a matrix, confused ones beside each other."""
    # In both directions two classes are one pair.
    either: Counter[tuple[str, str]] = Counter()
    for (given, proposed), count in pairs.items():
        either[(proposed, given) if (proposed, given) in either else (given, proposed)] += count
    groups: list[list[str]] = []
    chosen = 0
    for pair, _ in either.most_common():
        new = [name for name in pair if not any(name in group for group in groups)]
        if chosen + len(new) > most:
            continue
        chosen += len(new)
        touched = [group for group in groups if set(pair) & set(group)]
        joined = [name for group in touched for name in group] + new
        place = groups.index(touched[0]) if touched else len(groups)
        groups = [group for group in groups if group not in touched]
        groups.insert(place, joined)
    return [name for group in groups for name in group]


def render_matrix(findings: list[Finding]) -> str:
    """Draw the matrix: rows are classes as given, columns as proposed, the darker the larger the share of the row."""
    pairs = Counter((one.label, one.proposed) for one in findings)
    confused = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
    names = confused_classes(confused)
    if not names:
        return ""
    sizes = Counter(one.label for one in findings)
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(given)}</th>{''.join(_cell(pairs, sizes, given, name) for name in names)}</tr>"
        for given in names
    )
    shown = sum(count for pair, count in confused.items() if set(pair) <= set(names))
    return (
        f"<p>The {len(names):,} classes that are most confused, {shown:,} of {sum(confused.values()):,} proposals of "
        "another class. Rows: the label given; columns: the class proposed; on the diagonal what keeps its label.</p>"
        f'<div class="wide"><table class="matrix"><tr><td></td>{head}</tr>{rows}</table></div>'
    )


def _cell(pairs: Counter[tuple[str, str]], sizes: Counter[str], given: str, proposed: str) -> str:
    count = pairs[given, proposed]
    if given == proposed:
        return f'<td class="own">{count:,}</td>'
    if not count:
        return "<td></td>"
    # No share of a small class is so light that it is not seen.
    strength = 0.15 + 0.85 * count / sizes[given]
    title = escape(f"{given} given, {proposed} proposed: {count:,} of {sizes[given]:,}")
    return f'<td style="background:rgba(213,94,0,{strength:.2f})" title="{title}">{count:,}</td>'
