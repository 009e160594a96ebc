"""Distances of pytorch-metric-learning in terms of the cosine of unit vectors, which the fused sums are made of."""

from typing import Any

from robustdml_ops.losses.peer.package import peer_distances


def fused_form(distance: Any) -> str | None:
    """Form of a distance of unit vectors with cosine s: s, √(2 − 2s) or 2 − 2s; None: another, or a subclass."""
    if isinstance(distance, str):
        return distance
    if not distance.normalize_embeddings or distance.p != 2:
        return None
    if type(distance) in (peer_distances.CosineSimilarity, peer_distances.DotProductSimilarity):
        return "cosine" if distance.power == 1 and distance.is_inverted else None
    if type(distance) is peer_distances.LpDistance and not distance.is_inverted:
        return {1: "euclidean", 2: "squared"}.get(distance.power)
    return None


def peer_distance(form: str) -> Any:
    """The peer's object for a form."""
    if form == "cosine":
        return peer_distances.CosineSimilarity()
    return peer_distances.LpDistance(power=1 if form == "euclidean" else 2)


def named(distance: Any) -> str:
    """``distance=…`` as it was made, for a message."""
    if isinstance(distance, str):
        return f"distance={distance!r}"
    settings = f"p={distance.p}, power={distance.power}, normalize_embeddings={distance.normalize_embeddings}"
    return f"distance={type(distance).__name__}({settings})"


def keep_statistics(distance: Any, embeddings: Any, others: Any) -> None:
    """Let a distance that collects statistics have those of this batch, as its own forward would."""
    if not isinstance(distance, str) and distance.collect_stats:
        distance.reset_stats()
        rows = (embeddings.detach(), others.detach())
        distance.set_default_stats(*rows, *map(distance.maybe_normalize, rows))
