"""``torch.compile(torch.func.grad(loss))``: the gradient of eager mode, or an error, and never zeros."""

import pytest
import torch

from robustdml_ops.losses import MultiSimilarityLoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyNCALoss

# The compiler looks at .grad of what is no leaf.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.mark.parametrize(
    "make", [lambda kind=kind: kind(11, 8) for kind in (ProxyAnchorLoss, ProxyNCALoss, NormalizedSoftmaxLoss)]
)
def test_gradients_of_a_compiled_transform(make):
    torch._dynamo.reset()
    loss, X, labels = make(), torch.randn(16, 8), torch.randint(11, (16,))
    expected = torch.func.grad(lambda e: loss(e, labels))(X)
    assert expected.norm() > 0
    try:
        found = torch.compile(torch.func.grad(lambda e: loss(e, labels)), backend="eager")(X)
    except Exception:  # of the compiler, which falls back to eager mode within the transform
        return
    torch.testing.assert_close(found, expected)


def test_one_graph_of_it_is_refused():
    torch._dynamo.reset()
    loss, X, labels = MultiSimilarityLoss(), torch.randn(16, 8), torch.randint(5, (16,))
    compiled = torch.compile(torch.func.grad(lambda e: loss(e, labels)), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="transform"):  # of a type of the compiler
        compiled(X)
