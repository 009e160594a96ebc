"""``robustdml export``: a trained network as a file for other programs, checked against the network itself."""

import argparse
import io
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Singles
from robustdml.cache import write_text, write_whole
from robustdml.command_line import add_json_argument, print_json
from robustdml.commands.embed import add_model_arguments, add_output_argument, open_model
from robustdml.errors import UsageError, quiet, reason_of, say
from robustdml.progress import progress_bar
from robustdml.trained.embedder import ModelCard, TrainedEmbedder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    text = "FILE.pt2 for torch.export, or FILE.onnx (needs the extra export); FILE.json has the preparation"
    add_output_argument(parser, text)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    with progress_bar("export") as on_progress:
        embedder = open_model(arguments, on_progress)
        on_progress(f"writing {arguments.out}", 0, 0)
        metadata, difference = export_model(embedder, arguments.out)
    takes = embedder.card.takes
    if arguments.json:
        files = {"program": str(arguments.out), "metadata": str(metadata)}
        print_json({**files, "takes": takes, "largest_difference": difference})
        return 0
    say(f"{arguments.out}: takes {takes}; no number differs from the network's by more than {difference:.1e}")
    say(f"{metadata}: how what it takes is prepared, and what trained it")
    return 0


# The most that a number of an embedding of length 1 may differ; float32 in another order differs by some 1e-6.
TOLERANCE = 1e-4
CHECKED_BATCHES = (1, 2, 5)
INPUT, OUTPUT = "inputs", "embeddings"
METADATA = "robustdml_ops.json"
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


# Made of a network, an example and the metadata: the bytes of the file, and what runs them.
Program = tuple[bytes, Callable[[Tensor], Singles]]


def export_model(embedder: TrainedEmbedder, path: Path) -> tuple[Path, float]:
    """Write a network in the format of the file's name, and metadata beside it, which tell how inputs are prepared.

    Returns the file of the metadata, and the largest difference of a number from what the network itself gives.
    """
    write = FORMATS.get(path.suffix)
    if write is None:
        raise UsageError(f"{path}: expected a name that ends in {' or '.join(FORMATS)}")
    card = embedder.card
    output = {"shape": ["batch", card.embedding_size], "length": 1.0}
    metadata = json.dumps({"preprocessing": card.preprocessing, "output": output, **card.as_dict()}, indent=2)
    try:
        with quiet("torch.onnx"):
            content, run = write(embedder, next(_examples(card, (2,))), metadata)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{path}: {card.backbone} cannot be exported ({type(error).__name__}: {reason_of(error)})"
        ) from error
    with torch.no_grad():
        pairs = [(embedder(inputs).numpy(), run(inputs)) for inputs in _examples(card, CHECKED_BATCHES)]
    # A NaN is the largest of all: it is not passed over.
    difference = float(np.max([np.abs(expected - got).max() for expected, got in pairs]))
    if not difference <= TOLERANCE:
        raise UsageError(
            f"{path}: what was exported differs from the network by {difference:.1e}, more than {TOLERANCE:g}; it was "
            "not written"
        )
    write_whole(path, lambda file: file.write(content))
    beside = path.with_name(f"{path.name}.json")
    write_text(beside, metadata + "\n")
    return beside, difference


def _examples(card: ModelCard, batches: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        shape = (batch, *card.input_shape)
        yield torch.rand(shape, generator=generator) if card.takes_images else torch.randn(shape, generator=generator)


def _traced(embedder: TrainedEmbedder, example: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad():
        return torch.export.export(embedder, (example,), dynamic_shapes={INPUT: {0: batch}})


def _torch_program(embedder: TrainedEmbedder, example: Tensor, metadata: str) -> Program:
    buffer = io.BytesIO()
    torch.export.save(_traced(embedder, example), buffer, extra_files={METADATA: metadata})
    program = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    return buffer.getvalue(), lambda inputs: program(inputs).detach().numpy()


def _onnx_program(embedder: TrainedEmbedder, example: Tensor, metadata: str) -> Program:
    missing = [package for package in ONNX_PACKAGES if find_spec(package) is None]
    if missing:
        raise UsageError(f"ONNX needs {', '.join(missing)}: install with `pip install {' '.join(missing)}`")
    program = torch.onnx.export(
        _traced(embedder, example), (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
    )
    if program is None:
        raise UsageError("torch.onnx gave no program")
    program.model.metadata_props[METADATA] = metadata
    content = program.model_proto.SerializeToString()
    session = import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda inputs: session.run([OUTPUT], {INPUT: inputs.numpy()})[0]


FORMATS = {".pt2": _torch_program, ".onnx": _onnx_program}
