"""Every block of Python in README, CONTRIBUTING and docs/ runs, those of a page one after the other.

What a page takes for granted, such as a network and a loader, is given here in a small size. Of the commands of the
shell those run that a page's Python goes on from; `test_shell_blocks.py` parses all.
"""

import ast
import contextlib
import doctest
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robustdml.cli import main
from tests.docs.blocks import Block, commands, read_blocks

# Blocks of commands that run: page, first line, and how many of the commands. The fourth of these exports, which takes
# longer than all the others, and is tried by app/tests/test_using_models.py.
RUN = {("docs/models.md", "robustdml train --data photos --out out/run"): 3}
BLOCKS = [block for block in read_blocks() if block.language in ("python", "pycon") or (block.page, block.first) in RUN]
# Page and first line of a block that cannot run here, and why. Its syntax and its imports are tried.
NOT_RUN = {
    ("docs/cuda-graphs.md", "loss = ProxyAnchorLoss(num_classes, embedding_size).cuda()"): "CUDA graphs need a GPU",
    ("docs/cuda-graphs.md", 'X = torch.empty(batch_size, embedding_size, device="cuda")'): "CUDA graphs need a GPU",
    ("docs/scaling.md", "import torch"): "divides classes among eight GPUs; tests/distributed does it with processes",
}
CLASSES, FEATURES, SAMPLES, BATCH = 20, 16, 64, 32


@dataclass
class Loader:
    """Two batches of 4 samples of each of 8 classes; with the samples' numbers where a block asks for them."""

    with_ids: bool

    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        for batch in range(len(self)):
            labels = torch.arange(BATCH) // 4 + 8 * batch
            ids = torch.arange(BATCH) + BATCH * batch
            images = torch.randn(BATCH, FEATURES) + labels[:, None]
            yield (images, labels, ids) if self.with_ids else (images, labels)


def _given(text):
    """What blocks take for granted."""
    model = torch.nn.Linear(FEATURES, 128)
    loader = Loader("labels, ids in" in text)
    images, labels = next(iter(Loader(False)))
    return {
        "torch": torch,
        "device": "cpu",
        "model": model,
        "backbone": model,
        "loader": loader,
        "batches": loader,
        "dataset": range(SAMPLES),
        "images": images,
        "labels": labels,
        "num_classes": CLASSES,
        "embedding_size": 128,
        "my_network_with_its_weights": lambda: torch.nn.Flatten(),
        "TripletLoss": torch.nn.TripletMarginLoss,
        "X": np.random.default_rng(0).normal(size=(60, 8)) + np.repeat(np.eye(6, 8) * 9, 10, 0),
        "y": np.repeat(np.arange(6), 10),
    }


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}))
def test_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    torch.use_deterministic_algorithms(False)  # its NaN filling is not part of any page
    monkeypatch.chdir(tmp_path)
    _files(tmp_path)
    names = {}
    for block in (block for block in BLOCKS if block.page == page):
        reason = NOT_RUN.get((page, block.first))
        names |= {name: value for name, value in _given(block.text).items() if name not in names or name == "loader"}
        if reason:
            _try_imports(block)
        elif block.language == "pycon":
            _try_session(block, names)
        elif block.language == "bash":
            for words in commands(block.text)[: RUN[page, block.first]]:
                assert main(words[1:]) == 0
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, str(block), "exec"), names)


def test_what_cannot_run_is_still_there():
    there = {(block.page, block.first) for block in BLOCKS}
    assert {*NOT_RUN, *RUN} <= there


def _files(folder: Path):
    random = np.random.default_rng(0)
    for place in (".", "photos/red", "photos/green", "photos/blue", "photos/grey", "other-photos/x", "other-photos/y"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in ("a.jpg", "b.jpg"):
            Image.fromarray(random.integers(0, 255, (40, 30, 3), np.uint8)).save(folder / place / name)


def _try_imports(block: Block):
    imports = [node for node in ast.parse(block.text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imports, []), str(block), "exec"), {})


def _try_session(block: Block, names: dict[str, object]):
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), block.page, block.line)
    said = io.StringIO()
    failed = doctest.DocTestRunner().run(test, out=said.write, clear_globs=False).failed
    assert failed == 0, said.getvalue()
    names |= test.globs
