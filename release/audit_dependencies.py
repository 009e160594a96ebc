"""Whether a known vulnerability is in what CI installs, by pip-audit: ``python -m release.audit_dependencies``.

pip-audit skips packages that the package index has no data on, and succeeds. So this counts and reports the skipped
packages. They are a failure with ROBUSTDML_AUDIT=required, as in the weekly workflow; without it, linting needs no
network.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release.tools import search_path

ROOT = Path(__file__).parents[1]
PINNED = ("requirements/ci.txt", "requirements/data.txt")


def main(files: Sequence[str]) -> int:
    """Audit the packages that ``files`` pin; returns 1 if one is vulnerable, or must be known and is not."""
    named = [part for file in files for part in ("-r", str(ROOT / file))]
    options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--timeout", "10", "--format", "json"]
    asked = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options, *named],
        env=os.environ | {"PATH": search_path()},
        capture_output=True,
        text=True,
    )
    failed, lines = verdict(asked.stdout, asked.stderr, required=os.environ.get("ROBUSTDML_AUDIT") == "required")
    print("\n".join(lines), file=sys.stderr if failed else sys.stdout)
    return int(failed)


def verdict(report: str, errors: str, *, required: bool) -> tuple[bool, list[str]]:
    """Whether the audit fails by pip-audit's ``report`` in JSON, and the lines to print."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        return required, [f"NOT AUDITED: pip-audit gave no report. {errors.strip()[-500:]}"]
    lines = [
        f"{one['name']} {one['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no version'}"
        for one in packages
        for found in one.get("vulns", ())
    ]
    failed = bool(lines)
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    if skipped or not packages:
        lines.append(
            f"NOT AUDITED: {len(skipped)} of {len(packages)} packages, of which the index says nothing "
            f"({', '.join(skipped[:3])} …); where it can be reached, pypi.org does"
        )
        failed |= required
    return failed, lines or [f"{len(packages)} packages audited, no known vulnerability"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PINNED))
