"""Every block of Python in README, CONTRIBUTING and docs/ runs as printed, those of a page one after the other.

Of the commands of the shell those run that a page's Python goes on from; `test_shell_blocks.py` parses all.
"""

import ast
import contextlib
import doctest
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robustdml.cli import main
from tests.docs.blocks import Block, commands, read_blocks

# Blocks of commands that run: page, first line, and how many of the commands. The fourth of these exports, which takes
# longer than all the others; app/tests/test_using_models.py does it.
RUN = {("docs/training.md", "robustdml train --data photos --epochs 2 --out out/run"): 3}
BLOCKS = [block for block in read_blocks() if block.language in ("python", "pycon") or (block.page, block.first) in RUN]
# Page and beginning of a block that cannot run here. Its syntax and its imports are tried.
NOT_RUN = (
    ("docs/gpu.md", "import torch"),  # CUDA graphs need a GPU
    ("docs/gpu.md", 'X = torch.empty(256, 128, device="cuda")'),
    ("docs/large-classes.md", "import torch\nfrom torch.distributed"),  # tests/distributed does it with processes
)
LONG = ("docs/training.md", "docs/audit.md")  # train networks or audit, for tens of seconds
PYTHON_PAGES = sorted({block.page for block in BLOCKS})


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.nightly if page in LONG else ()) for page in PYTHON_PAGES]
)
def test_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    torch.use_deterministic_algorithms(False)  # its NaN filling is not part of any page
    monkeypatch.chdir(tmp_path)
    _files(tmp_path)
    names: dict[str, object] = {}
    for block in (block for block in BLOCKS if block.page == page):
        if any(block.page == page and block.text.startswith(start) for page, start in NOT_RUN):
            imports = [node for node in ast.parse(block.text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
            exec(compile(ast.Module(imports, []), str(block), "exec"), {})
        elif block.language == "pycon":
            _try_session(block, names)
        elif block.language == "bash":
            for words in commands(block.text)[: RUN[page, block.first]]:
                assert main(words[1:]) == 0
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, str(block), "exec"), names)


def _files(folder: Path):
    random = np.random.default_rng(0)
    for place in (".", "photos/red", "photos/green", "photos/blue", "photos/grey", "other-photos/x", "other-photos/y"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in ("a.jpg", "b.jpg"):
            Image.fromarray(random.integers(0, 255, (40, 30, 3), np.uint8)).save(folder / place / name)


def _try_session(block: Block, names: dict[str, object]):
    test = doctest.DocTestParser().get_doctest(block.text, names, str(block), block.page, block.line)
    said = io.StringIO()
    failed = doctest.DocTestRunner().run(test, out=said.write, clear_globs=False).failed
    assert failed == 0, said.getvalue()
    names |= test.globs
