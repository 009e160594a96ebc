"""The reader of blocks and commands, by which the other tests of this folder go."""

import pytest

from tests.docs.blocks import FENCE, commands


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("robustdml train --data a  # all of it", ["robustdml train --data a"]),
        ("OMP_NUM_THREADS=2 A='b c' make test", ["make test"]),
        ("robustdml train 2>&1 | tee log", ["robustdml train"]),
        ("cd a && pip install '.[x,y]'; make docs", ["cd a", "pip install .[x,y]", "make docs"]),
        ("(cd dist && sha256sum *.whl > SUMS)", ["cd dist", "sha256sum *.whl"]),
        (
            "robustdml train \\\n  --noise symmetric:0.5 --out out/a",
            ["robustdml train --noise symmetric:0.5 --out out/a"],
        ),
        ('pip install "a==1.0+cpu" --hash=sha256:1 $HOME/x', ["pip install a==1.0+cpu --hash=sha256:1 $HOME/x"]),
        ("# nothing", []),
    ],
)
def test_commands_of_a_line(line, expected):
    assert [" ".join(words) for words in commands(line)] == expected


def test_a_fence_ends_where_its_indentation_ends():
    text = "- a\n\n  ```python\n  x = 1\n  ```\n\n```bash\nmake\n```\n"
    assert [(match[2], match[3]) for match in FENCE.finditer(text)] == [("python", "  x = 1\n"), ("bash", "make\n")]
