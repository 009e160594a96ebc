"""Train, audit and use embeddings of images whose labels may be wrong."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml.trained.embedder import load_embedder

__all__ = ["load_embedder"]


def __getattr__(name: str) -> Any:
    if name == "load_embedder":
        # When it is used: a command that needs no network is not to wait for one.
        from robustdml.trained.embedder import load_embedder

        return load_embedder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
