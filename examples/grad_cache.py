"""GradCache: a batch of any size through the network a chunk at a time, with the gradients of the whole batch.

1. Embeddings of all chunks without a graph, and the state of the random numbers before each.
2. The loss of all embeddings, and its gradient by each of them.
3. Each chunk again, with its random numbers and types, and backward with its part of that gradient.
"""

import torch
from torch import nn

from robustdml_ops.losses import SupConLoss


def backward_in_chunks(network, loss_function, images, labels, chunk, scale=1.0, autocast=torch.bfloat16):
    """Loss of the batch; the parameters get its gradient times ``scale``, as a gradient scaler wants it."""
    states, embeddings = [], []

    def embed(rows):
        with torch.autocast(rows.device.type, autocast, enabled=autocast is not None):
            return network(rows)

    with torch.no_grad():
        for rows in images.split(chunk):
            states.append(torch.get_rng_state())  # on a GPU also torch.cuda.get_rng_state()
            embeddings.append(embed(rows))
    end = torch.get_rng_state()
    leaves = torch.cat(embeddings).requires_grad_()
    loss = loss_function(leaves, labels)
    (scale * loss).backward()
    for rows, state, gradient in zip(images.split(chunk), states, leaves.grad.split(chunk), strict=True):
        torch.set_rng_state(state)
        embed(rows).backward(gradient)
    torch.set_rng_state(end)
    return loss.detach()


def largest_difference(autocast, chunk=16):
    """Of the gradients in chunks from those of the whole batch, whose dropout masks are those of the chunks."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 16))
    images, labels, loss_function = torch.randn(128, 20), torch.arange(128) // 4, SupConLoss()
    torch.manual_seed(1)
    loss = backward_in_chunks(network, loss_function, images, labels, chunk, autocast=autocast)
    found = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    torch.manual_seed(1)
    # Without its cache, as chunks do, so that the weights' gradients are added up in float32.
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast is not None, cache_enabled=False):
        whole = torch.cat([network(rows) for rows in images.split(chunk)])
    expected = loss_function(whole, labels)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    return max((a - b.grad).abs().max() / b.grad.abs().max() for a, b in zip(found, network.parameters(), strict=True))


if __name__ == "__main__":
    for autocast in (None, torch.bfloat16):
        difference = float(largest_difference(autocast))
        print(f"autocast {autocast}: gradients differ by {difference:.1e} of the largest")
        assert difference < 1e-6
