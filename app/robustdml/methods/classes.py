"""Losses over classes: Proxy-Anchor and its descendants, and softmax, plain or with a margin."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from robustdml.errors import UsageError
from robustdml.methods.method import Method, arguments_of
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import (
    AdaptiveProxyAnchorLoss,
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SmoothProxyAnchorLoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)


@dataclass(frozen=True)
class NegativeOptions(Options, name="negative"):
    """Negatives of a loss over classes."""

    share: float = option(
        1.0, "share of the classes outside the batch that a step computes with, drawn anew each step", positive=True
    )
    drop_similar: float | None = option(
        None, "cosine with a sample above which a class is no negative of it, such as 0.4 (default: all are)"
    )
    drop_nearer: bool = option(False, "a class nearer to a sample than its own and than by chance is no negative")


@dataclass(frozen=True)
class AnchorOptions(Options, name="anchor"):
    """Proxy-Anchor, smooth and adaptive Proxy-Anchor."""

    alpha: float = option(32.0, "scale of the similarities")
    margin: float = option(0.1, "margin, or where a learnt one starts")


@dataclass(frozen=True)
class AdaptiveOptions(Options, name="adaptive"):
    """Adaptive Proxy-Anchor."""

    per_class: bool = option(False, "a margin for each class")
    regularization: float = option(1.0, "weight of the term that keeps margins up, λ")
    negative_margin: str = option("sample", "whose margin a negative pair has", choices=("sample", "proxy"))


@dataclass(frozen=True)
class SmoothOptions(Options, name="smooth"):
    """Smooth Proxy-Anchor."""

    beta: float = option(100.0, "steepness of the weights")
    threshold: float = option(0.1, "confidence from which a sample counts as positive")
    epochs: int = option(12, "epochs of phase one, which trains the confidence head", at_least=1)
    learning_rate: float = option(1e-3, "learning rate of phase one", positive=True)


@dataclass(frozen=True)
class SoftmaxOptions(Options, name="softmax"):
    """Softmax over a share of the classes."""

    correct_negatives: bool = option(True, "let a class that was drawn count for those that were not")


@dataclass(frozen=True)
class ProxyNCAOptions(Options, name="proxy_nca"):
    """Proxy-NCA."""

    softmax_scale: float = option(3.0, "inverse temperature; the paper has 1, ProxyNCA++ 9")


@dataclass(frozen=True)
class NormalizedSoftmaxOptions(Options, name="normalized_softmax"):
    """Normalised softmax."""

    temperature: float = option(0.05, "of the softmax")


@dataclass(frozen=True)
class EmbeddingSoftmaxOptions(Options, name="embedding_softmax"):
    """Softmax from embeddings."""

    temperature: float = option(1 / 16, "of the softmax")
    drawn: int = option(20_000, "classes outside the batch that a step computes with, drawn anew each step", at_least=1)


@dataclass(frozen=True)
class SoftTripleOptions(Options, name="soft_triple"):
    """SoftTriple."""

    centers_per_class: int = option(10, "centres of each class, H")
    la: float = option(20.0, "scale of the similarities, λ")
    gamma: float = option(0.1, "temperature of the softmax over a class's centres")
    margin: float = option(0.01, "δ")
    regularizer_weight: float = option(0.0, "draws centres of a class into one; the authors take 0.2")


@dataclass(frozen=True)
class CosFaceOptions(Options, name="cosface"):
    """CosFace."""

    margin: float = option(0.35, "of the label's cosine")
    scale: float = option(8.0, "of the cosines, an inverse temperature; the papers have 64")


@dataclass(frozen=True)
class ArcFaceOptions(Options, name="arcface"):
    """ArcFace, also with sub-centres."""

    margin: float = option(28.6, "of the angle with the label's class, in degrees")
    scale: float = option(8.0, "of the cosines, an inverse temperature; the papers have 64")


@dataclass(frozen=True)
class SubCenterOptions(Options, name="subcenter"):
    """Sub-center ArcFace."""

    sub_centers: int = option(3, "centres of each class")


def class_method(title: str, loss: Callable[..., nn.Module], *groups: type[Options], **declared: Any) -> Method:
    """Describe a loss over classes, whose arguments are the settings of these groups."""

    def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
        arguments = arguments_of(loss, options, groups)
        if NegativeOptions in groups:
            negative = options[NegativeOptions]
            if negative.drop_nearer and negative.drop_similar is not None:
                raise UsageError(
                    f"negative.drop_similar={negative.drop_similar} beside negative.drop_nearer: leave one out"
                )
            arguments["drop_similar_negatives"] = "own" if negative.drop_nearer else negative.drop_similar
            if negative.share != 1:  # Otherwise a step meets all classes
                arguments["negative_share"] = negative.share
                if SoftmaxOptions in groups:
                    arguments["negative_correction"] = options[SoftmaxOptions].correct_negatives
        return loss(num_classes, embedding_size, **arguments)

    return replace(Method(title, make_loss, groups, proxies=lambda loss: loss.proxies), **declared)


def _softmax_from_embeddings(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    own = options[EmbeddingSoftmaxOptions]
    share = min(own.drawn / num_classes, 1.0)
    settings: dict[str, Any] = {} if share == 1 else {"negative_share": share, "negative_correction": False}
    return NormalizedSoftmaxLoss(num_classes, embedding_size, own.temperature, first_embeddings=FIRST, **settings)


def _columns(loss: Any) -> Any:
    return loss.W.t()


def _centers(loss: Any) -> Any:
    """(C, H, D)."""
    weights = loss.fc if isinstance(loss, SoftTripleLoss) else loss.W
    return weights.t().reshape(loss.num_classes, -1, loss.embedding_size)


FIRST = 8  # embeddings of a class that its proxy begins as
_NEGATIVES = (NegativeOptions, SoftmaxOptions)
METHODS = {
    "proxy-anchor": class_method("Proxy-Anchor", ProxyAnchorLoss, AnchorOptions, NegativeOptions),
    "smooth-proxy-anchor": class_method(
        "Smooth Proxy-Anchor", SmoothProxyAnchorLoss, AnchorOptions, SmoothOptions, inputs=("confidences",)
    ),
    "adaptive-proxy-anchor": class_method(
        "Adaptive Proxy-Anchor", AdaptiveProxyAnchorLoss, AnchorOptions, AdaptiveOptions, NegativeOptions
    ),
    "proxy-nca": class_method("Proxy-NCA", ProxyNCALoss, ProxyNCAOptions, *_NEGATIVES),
    "normalized-softmax": class_method(
        "Normalised softmax", NormalizedSoftmaxLoss, NormalizedSoftmaxOptions, *_NEGATIVES, proxies=_columns
    ),
    "softmax-from-embeddings": Method(
        "Softmax from embeddings",
        _softmax_from_embeddings,
        (EmbeddingSoftmaxOptions,),
        proxies=_columns,
        proxy_radians=0.1,
    ),
    "soft-triple": class_method(
        "SoftTriple", SoftTripleLoss, SoftTripleOptions, *_NEGATIVES, proxies=_centers, learning_rate=3e-3
    ),
    "cosface": class_method("CosFace", CosFaceLoss, CosFaceOptions, *_NEGATIVES, proxies=_columns),
    "arcface": class_method("ArcFace", ArcFaceLoss, ArcFaceOptions, *_NEGATIVES, proxies=_columns),
    "subcenter-arcface": class_method(
        "Sub-center ArcFace", SubCenterArcFaceLoss, ArcFaceOptions, SubCenterOptions, *_NEGATIVES, proxies=_centers
    ),
}
