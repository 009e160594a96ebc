"""The fused losses under pytorch-metric-learning's names, for scripts that look their losses up by name."""

from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any

import robustdml_ops.losses
from robustdml_ops.losses.peer.package import PACKAGE

MODULE = "pytorch_metric_learning.losses"


class PeerPatch(AbstractContextManager["PeerPatch"]):
    """The classes that :func:`patch_pytorch_metric_learning` replaced; leaving a ``with`` block undoes it.

    Attributes
    ----------
    replaced : dict of str to type
        The peer's classes by name; empty where all fused losses were in place before.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module, self.replaced = module, dict[str, Any]()
        for name in robustdml_ops.losses.__all__:
            given, ours = getattr(module, name, None), getattr(robustdml_ops.losses, name)
            if given is not None and given is not ours:
                self.replaced[name] = given
                setattr(module, name, ours)

    def undo(self) -> None:
        """Put the peer's classes back; a second call changes nothing."""
        for name, theirs in self.replaced.items():
            setattr(self._module, name, theirs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({MODULE}: {', '.join(self.replaced) or 'nothing replaced'})"


def patch_pytorch_metric_learning() -> PeerPatch:
    """Put the fused losses in place of those of the same names in ``pytorch_metric_learning.losses``.

    For scripts that build losses from a configuration, by ``getattr(pytorch_metric_learning.losses, name)``. Call it
    before the script imports losses by name: ``from pytorch_metric_learning.losses import ArcFaceLoss`` copies what is
    there at that time. Losses without a fused form, miners, reducers and objects that exist already stay.

    Returns
    -------
    PeerPatch
        The classes that were replaced, by name, and ``undo()``.

    Raises
    ------
    ImportError
        pytorch-metric-learning is not installed.

    Examples
    --------
    >>> import pytorch_metric_learning.losses, robustdml_ops
    >>> with robustdml_ops.patch_pytorch_metric_learning() as patch:
    ...     loss_function = getattr(pytorch_metric_learning.losses, "ProxyAnchorLoss")(1000, 64)
    >>> type(loss_function).__module__, "TripletMarginLoss" in patch.replaced
    ('robustdml_ops.losses.proxy_anchor', False)
    """
    try:
        from pytorch_metric_learning import losses
    except ImportError as error:
        raise ImportError(f"{PACKAGE} is not installed, so there is nothing to patch: pip install {PACKAGE}") from error
    return PeerPatch(losses)
