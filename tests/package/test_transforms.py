"""``torch.func`` and ``torch.jit.trace``: a right result, or the clear error that PyTorch's own functions give."""

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from tests.every_call import EVERY, first

CLEAR = (
    "a fused loss or op takes one batch, and vmap",
    "must implement the jvp function",
    "torch.jit.trace sees nothing of what this op computes",
    "Cannot insert a Tensor that requires grad as a constant",  # of a parameter that a traced function closes over
    "register_vmap",  # of a registered op
    "sequential work on values",
)


def prepared(name):
    """A function of the argument that is differentiated, and that argument. In eval mode no call changes the next."""
    call = EVERY[name]
    function, inputs = call.make(), call.inputs()
    if isinstance(function, torch.nn.Module):
        function.eval()
    floating = [key for key, value in inputs.items() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    argument = (*call.differentiable, *floating)[0]
    rest = {key: value for key, value in inputs.items() if key != argument} | call.settings
    return (lambda x: first(function(**{argument: x}, **rest))), inputs[argument]


def outcome(compute):
    """The result, or None after a clear error."""
    try:
        return compute()
    except (RuntimeError, NotImplementedError) as error:
        if not any(text in str(error) for text in CLEAR):
            raise
        return None


def jacobian(f, x):
    return torch.autograd.functional.jacobian(f, x)


def of_several_upstreams(f, x):
    x = x.clone().requires_grad_()
    value = f(x) + 0 * x.sum()  # of constants, too, a gradient
    (found,) = torch.autograd.grad(value, x, torch.stack([value, 2 * value]).detach(), is_grads_batched=True)
    return found


def of_one_after_the_other(f, x):
    x = x.clone().requires_grad_()
    value = f(x) + 0 * x.sum()  # of constants, too, a gradient
    upstreams = (value.detach(), 2 * value.detach())
    return torch.stack([torch.autograd.grad(value, x, one, retain_graph=True)[0] for one in upstreams])


TRANSFORMS = {
    "jacrev": (lambda f, x: jacrev(f)(x), jacobian),
    "jacobian(vectorize=True)": (lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True), jacobian),
    "is_grads_batched": (of_several_upstreams, of_one_after_the_other),
    "jacfwd": (lambda f, x: jacfwd(f)(x), jacobian),
    "vmap": (lambda f, x: vmap(f)(torch.stack([x, x])), lambda f, x: torch.stack([f(x), f(x)])),
    "vmap of grad": (
        lambda f, x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, x])),
        lambda f, x: torch.stack([jacobian(lambda x: f(x).sum(), x)] * 2),
    ),
    "grad": (lambda f, x: grad(lambda x: f(x).sum())(x), lambda f, x: jacobian(lambda x: f(x).sum(), x)),
    "jvp": (
        lambda f, x: jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f, x: (lambda J: J.sum(tuple(range(J.dim() - x.dim(), J.dim()))))(jacobian(f, x)),
    ),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func(name, transform):
    f, x = prepared(name)
    ours, theirs = TRANSFORMS[transform]
    result = outcome(lambda: ours(f, x))
    if transform == "grad" and EVERY[name].differentiable:
        assert result is not None
    # What is a constant for autograd may still be an expression for forward mode.
    if result is not None and (transform == "vmap" or EVERY[name].differentiable):
        torch.testing.assert_close(result, theirs(f, x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EVERY)
def test_a_trace(name):
    f, x = prepared(name)
    traced = outcome(lambda: torch.jit.trace(f, (x,), check_trace=False))
    if traced is not None:
        other = x.flip(0)
        torch.testing.assert_close(traced(other), f(other))
