"""The keyword arguments that losses share: type, default and documentation of each, in one place.

``python -m release.constructors`` writes them into the constructors and docstrings of the public losses.
"""

import difflib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

Reduction = Literal["mean", "none"]
REDUCTIONS = ("mean", "none")
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
        if reduces and value is not None and options.get("reduction") == "none":
            raise ValueError(
                f"{name} with reduction='none', which gives the losses before they are reduced: leave one out"
            )
