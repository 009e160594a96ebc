"""``make leaks``: what 10,000 steps of every loss, filter and optimiser leave behind, each in a process of its own.

python -m tests.leaks --steps 10000 --out out/leaks.md
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.leaks.steps import STEPS, Held, growth

# Of resident memory: what an allocator and its free lists may move by in ten thousand steps.
RESIDENT = 4 << 20


def flat(grown: Held, steps: int) -> bool:
    """Nothing that comes with the steps: 8 bytes of memory each, an object in 100, a block in 10, a file, a thread."""
    return (
        grown.resident <= RESIDENT
        and grown.allocated <= 8 * steps
        and grown.objects <= steps / 100
        and grown.blocks <= steps / 10
        and grown.handles <= 0
        and grown.threads <= 0
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("out/leaks.md"))
    parser.add_argument("--one", help="the steps of this name alone, here: what the others are started with")
    arguments = parser.parse_args()
    if arguments.one:
        print(*growth(STEPS[arguments.one](), arguments.steps, warm_up=500))
        return 0
    lines = [
        f"After {arguments.steps} steps, and 500 before them: `make leaks STEPS={arguments.steps}`.",
        "",
        "| steps of | resident, KiB | malloc, bytes | Python's objects | blocks | files | threads | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    leaking = []
    for name in STEPS:
        started = time.time()
        command = [sys.executable, "-m", "tests.leaks", "--one", name, "--steps", str(arguments.steps)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        grown = Held(*map(int, answer.split()))
        if not flat(grown, arguments.steps):
            leaking.append(name)
        numbers = [grown.resident // 1024, *grown[1:], round(time.time() - started)]
        lines.append(f"| {name} | " + " | ".join(f"{number:+d}" for number in numbers[:-1]) + f" | {numbers[-1]} |")
        print(lines[-1], flush=True)
    lines += ["", f"Leaks: {', '.join(leaking) or 'none'}."]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(lines) + "\n")
    print(lines[-1])
    return 1 if leaking else 0


if __name__ == "__main__":
    sys.exit(main())
