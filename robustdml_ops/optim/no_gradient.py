"""A placeholder in ``.grad`` of proxies that were updated within a sweep, which raises when it is used."""

from typing import Any

from torch import Tensor


class NoGradient(Tensor):
    """A tensor without memory, of the shape of the proxies, on which every operation raises.

    Clipping by a norm over all parameters, another optimiser's step, the sum with a second gradient, a loss scaler's
    division and DDP's mean over processes then raise, where with None they would silently skip the proxies.
    """

    @staticmethod
    def __new__(cls, like: Tensor) -> "NoGradient":
        """A placeholder of the shape, type and device of ``like``."""
        made: NoGradient = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        """The shape."""
        return f"NoGradient(size={tuple(self.shape)}, taken within the sweep)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Raise for every operation."""
        raise RuntimeError(
            f"{func} asks for the gradient of proxies that were updated within the sweep of their loss, and no such "
            "gradient exists. Leave the proxies out of torch.nn.utils.clip_grad_norm_, of other optimisers, of other "
            "terms of the loss, of torch.amp.GradScaler and of DistributedDataParallel (divide them by shard_classes, "
            "and call leave_out_of_ddp), or train them with an optimiser of torch.optim"
        )


def stands_for_none(gradient: Tensor | None) -> bool:
    """Whether ``.grad`` is None or the placeholder."""
    return gradient is None or isinstance(gradient, NoGradient)
