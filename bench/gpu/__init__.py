"""Everything that is to be found out on a GPU, in sections that each have processes of their own: docs/gpu.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
