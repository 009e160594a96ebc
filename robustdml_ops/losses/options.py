"""The keyword arguments that losses share: type, default and documentation of each, in one place.

``python -m release.constructors`` writes them into the constructors and docstrings of the public losses.
"""

import difflib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import TypedDict

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")
Backend = Literal["native", "triton", "eager", "auto"]


@dataclass(frozen=True)
class Option:
    """What a constructor and its docstring say of an argument."""

    default: object
    kind: str  # as docstrings name types
    text: str


class LossOptions(TypedDict, total=False):
    """Keyword arguments of every loss of embeddings and labels."""

    reduction: Reduction  # which each class documents itself
    backend: Annotated[
        Backend | None,
        Option(
            None,
            '{"native", "triton", "eager", "auto"}, optional',
            "Who computes. None and auto: the fastest that serves the device.",
        ),
    ]
    ignore_index: Annotated[
        int | None,
        Option(
            None,
            "int, optional",
            "Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.",
        ),
    ]
    distance: Annotated[
        Any,
        Option(
            None,
            "str or object, optional",
            'Name of a distance, such as "cosine", or a distance of pytorch-metric-learning, see '
            "docs/compatibility.md. None: the cosine, or the loss's own.",
        ),
    ]
    reducer: Annotated[
        Any, Option(None, "object, optional", "A reducer of pytorch-metric-learning; see docs/compatibility.md.")
    ]
    embedding_regularizer: Annotated[
        Any, Option(None, "object, optional", "A regulariser of pytorch-metric-learning, of the embeddings.")
    ]
    embedding_reg_weight: Annotated[float, Option(1.0, "float", "Weight of ``embedding_regularizer``.")]
    collect_stats: Annotated[
        bool | None,
        Option(None, "bool, optional", "Whether pytorch-metric-learning's distance and reducer keep their statistics."),
    ]


class ClassMatrixOptions(LossOptions, total=False):
    """Of a loss with a class matrix, too."""

    weight_regularizer: Annotated[
        Any, Option(None, "object, optional", "A regulariser of pytorch-metric-learning, of the class matrix.")
    ]
    weight_reg_weight: Annotated[float, Option(1.0, "float", "Weight of ``weight_regularizer``.")]
    weight_init_func: Annotated[
        Any,
        Option(
            None,
            "callable, optional",
            "Fills the class matrix in place. None: as pytorch-metric-learning, ``normal_`` or in Proxy-Anchor losses "
            '``kaiming_normal_(mode="fan_out")``.',
        ),
    ]
    negative_share: Annotated[
        float,
        Option(
            1.0,
            "float",
            "In (0, 1]: the share of the classes outside the batch that a training step computes with, drawn anew each "
            "step, see docs/large-classes.md; 1: all.",
        ),
    ]
    negative_seed: Annotated[int, Option(0, "int", "Seed ≥ 0 of the draws; seed and step are in the ``state_dict``.")]
    drop_similar_negatives: Annotated[
        float | Literal["own"] | None,
        Option(
            None,
            'float or "own", optional',
            "In (−1, 1]: negatives whose cosine with the sample exceeds this are left out, as they may be of its "
            'class, with a wrong label or under another name. "own": the limit of each sample is its cosine with its '
            "own class, or with the nearest of several, and at least t_C of docs/equations.md. The selection is "
            "constant in the gradients. None: all negatives stay.",
        ),
    ]
    first_embeddings: Annotated[
        int,
        Option(
            0,
            "int",
            "Above 0: a row of the class matrix that no sample has met begins in training as the first embedding of "
            "its class, of length 1, in the step that meets it, and as the mean direction of the first few if this is "
            "above 1, which helps where labels are wrong. ``.taken`` (C,) counts them. See "
            ":func:`~robustdml_ops.losses.start_class_matrix`.",
        ),
    ]
    dtype: Annotated[
        torch.dtype | None,
        Option(
            None,
            "torch.dtype, optional",
            "Type in which the class matrix is made: ``torch.bfloat16`` takes two bytes an element at all times, where "
            "``loss.bfloat16()`` takes six while it converts. None: PyTorch's default.",
        ),
    ]


class SoftmaxOptions(ClassMatrixOptions, total=False):
    """Of a softmax over classes, too."""

    negative_correction: Annotated[
        bool,
        Option(
            True,
            "bool",
            "With a ``negative_share``: whether a class that was drawn counts for those that it stands for, the "
            "logarithmic correction. False: the form of Partial FC.",
        ),
    ]
    label_smoothing: Annotated[
        float,
        Option(
            0.0,
            "float",
            "ε in [0, 1]: the targets are (1 − ε) of the label and ε/C of each class, as those of ``F.cross_entropy``. "
            "Not beside ``negative_share`` or ``drop_similar_negatives``.",
        ),
    ]
    weight: Annotated[
        Tensor | None,
        Option(
            None,
            "Tensor, optional",
            '(C,), ≥ 0: weights of the classes, as of ``F.cross_entropy``: ``"mean"`` divides by the sum of the '
            "samples'. A buffer. No gradient. None: 1.",
        ),
    ]


def shared(options: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Of a constructor's ``locals()`` the ``options``, and the arguments that it does not know."""
    unknown: dict[str, Any] = arguments["unknown"]
    return {name: arguments[name] for name in options.__annotations__ if name in arguments} | unknown


def check_options(kind: type, known: Collection[str], options: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a loss of class ``kind`` does not know, or that exclude each other."""
    for name, value in options.items():
        if name not in known:
            own = [own for own in inspect.signature(kind).parameters if own not in ("args", "kwargs", "unknown")]
            near = difflib.get_close_matches(name, [*known, *own], 1)
            if name in ("weight", "weights") and "sample_weights" in known:
                near = ["sample_weights"]  # label_weights has more letters in common
            hint = f": did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{hint}")
        reduces = name == "reducer" or name.endswith("regularizer")
        reduction = options.get("reduction")
        if reduces and value is not None and reduction in ("none", "sum"):
            why = "gives the losses before they are reduced" if reduction == "none" else "is a reduction of its own"
            raise ValueError(f"{name} with reduction={reduction!r}, which {why}: leave one out")
