"""(i) What a verdict costs by vMF-Sim against AvgSim, and what PRISM adds to a ResNet-50 step."""

import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from robustdml_ops.losses import ContrastiveLoss
from robustdml_ops.robust import PRISM

from ...shapes import Shape
from ..sheet import Absent, Sheet
from ..steps import SMALL, Inputs
from ..timing import Step, measure

SIMILARITIES = ("average", "vmf")
ROWS_A_CLASS, PARTS = 4, 100_000
IMAGES = Shape(64, 11_318, 512)  # a batch of Stanford Online Products, and its classes
PIXELS, SMALLEST = 224, 32
TURNS = 5


def run(sheet: Sheet) -> None:
    for similarity in SIMILARITIES:
        sheet.row("log_p_clean", partial(scores, sheet, similarity), SMALL, variant=similarity)
        sheet.row("step of the filter", partial(filtering, sheet, similarity), SMALL, variant=similarity)
    sheet.row("ResNet-50", partial(training, sheet), IMAGES, dtype="amp")


def filled(similarity: str, shape: Shape, device: torch.device) -> PRISM:
    """A filter whose bank has rows of every class, and whose vMF-Sim has begun."""
    vmf = {"vmf_start": 0} if similarity == "vmf" else {}
    prism = PRISM(shape.C, shape.D, similarity, 0.5, "smooth-top-r", memory_size=ROWS_A_CLASS * shape.C, **vmf)
    prism = prism.to(device)
    for part in torch.arange(shape.C, device=device).repeat(ROWS_A_CLASS).split(PARTS):
        prism.enqueue(torch.randn(len(part), shape.D, device=device), part, torch.ones_like(part, dtype=torch.bool))
    return prism


def scores(sheet: Sheet, similarity: str, shape: Shape) -> Mapping[str, Any]:
    prism, inputs = filled(similarity, shape, sheet.device), Inputs(shape, "float32", sheet.device)
    X, y = inputs.embeddings.detach(), inputs.labels
    return measure(Step(lambda: prism.log_p_clean(X, y)), sheet.device)


def filtering(sheet: Sheet, similarity: str, shape: Shape) -> Mapping[str, Any]:
    """Score, threshold, enqueue, and the refresh of the classes that were touched."""
    prism, inputs = filled(similarity, shape, sheet.device), Inputs(shape, "float32", sheet.device)
    X, y = inputs.embeddings.detach(), inputs.labels
    return measure(Step(lambda: prism.enqueue(X, y, prism(X, y).keep)), sheet.device)


def training(sheet: Sheet, shape: Shape) -> Mapping[str, Any]:
    """A step of training under autocast, without the filter and with it, turn by turn."""
    try:
        from torchvision.models import resnet18, resnet50
    except (ImportError, RuntimeError) as error:  # one that was built for another torch raises on import
        if not sheet.dry_run:
            raise Absent(f"torchvision is not there ({error})") from error
        network: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3 * SMALLEST**2, shape.D))
    else:
        network = (resnet18 if sheet.dry_run else resnet50)(num_classes=shape.D)
    network = network.to(sheet.device, memory_format=torch.channels_last)
    size = SMALLEST if sheet.dry_run else PIXELS
    images = torch.randn(shape.B, 3, size, size, device=sheet.device).contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9)
    loss_function, y = ContrastiveLoss(), torch.arange(shape.B, device=sheet.device) // 4
    prism = filled("vmf", shape, sheet.device)

    def step(filtered: bool) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(sheet.device.type, torch.bfloat16):
            embeddings = network(images)
        keep = prism(embeddings.detach(), y).keep if filtered else None
        loss = loss_function(embeddings, y, sample_weights=None if keep is None else keep.float())
        loss.backward()
        optimizer.step()
        if keep is not None:
            prism.enqueue(embeddings.detach(), y, keep)

    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(1 if sheet.dry_run else TURNS):
        for filtered, measured in found.items():
            measured.append(measure(Step(partial(step, filtered)), sheet.device))
    alone, together = ([one["step_s"] for one in found[filtered]] for filtered in (False, True))
    return {
        **found[True][-1],
        "step_s": statistics.median(together),
        "alone_s": statistics.median(alone),
        "ratio": statistics.median(b / a for a, b in zip(alone, together, strict=True)),
    }
