"""``make fuzz``: random calls by the hundred thousand, in batches that are kept, so that a run goes on where it ended.

    python -m tests.fuzz --cases 100000 --seed 17 -n 2 --out out/fuzz

A batch is a hundred calls of one op, loss, filter or optimiser, from a seed that is made of the run's, the name and the
batch's number. What it found is a line of ``<out>/<seed>.jsonl``; a batch with a line is not run again. A finding is
shrunk to the smallest case that shows it, and printed.
"""

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

from tests.fuzz.batch import jobs_of, run


def main() -> int:
    """Run what is missing, and tell how far it is every half minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("-n", "--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / f"{arguments.seed}.jsonl"
    lines = _complete_lines(log)
    done = {(line["name"], line["batch"], line["cases"]) for line in lines}
    jobs = [job for job in jobs_of(arguments.cases, arguments.seed) if (job.name, job.number, job.cases) not in done]
    told = time.time()
    with log.open("a") as file, multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        file.write("\n")  # the last line may have been cut off
        for line in pool.imap_unordered(run, jobs):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            for finding in line["finding"] or []:
                print(f"FINDING {line['name']}, batch {line['batch']}: {finding}\n", flush=True)
            if time.time() > told + 30:
                told = time.time()
                print(_told(lines, arguments.cases), flush=True)
    print(_told(lines, arguments.cases))
    return 1 if any(line["finding"] for line in lines) else 0


def _complete_lines(log: Path) -> list[dict]:
    """Of an earlier run: those that were written to their end."""
    lines = []
    for text in log.read_text().splitlines() if log.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _told(lines: list[dict], cases: int) -> str:
    ran, minutes = sum(line["cases"] for line in lines), sum(line["seconds"] for line in lines) / 60
    names = len({line["name"] for line in lines})
    wrong = sum(1 for line in lines if line["finding"])
    return f"{ran} of {cases} cases, {names} names, {minutes:.1f} minutes of one core, {wrong} batches with a finding"


if __name__ == "__main__":
    sys.exit(main())
