"""Train, audit and use embeddings of images whose labels may be wrong."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml.metrics import evaluate_embeddings
    from robustdml.trained.embedder import load_embedder

__all__ = ["evaluate_embeddings", "load_embedder"]


def __getattr__(name: str) -> Any:
    if name == "load_embedder":
        # When it is used: a command that needs no network is not to wait for one.
        from robustdml.trained.embedder import load_embedder

        return load_embedder
    if name == "evaluate_embeddings":
        from robustdml.metrics import evaluate_embeddings

        return evaluate_embeddings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
