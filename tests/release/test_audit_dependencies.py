"""An audit of skipped packages or without a report fails where it is required."""

import json

import pytest

from release.audit_dependencies import verdict

CLEAN = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found on PyPI and could not be audited: rich (15.0.0)"}
VULNERABLE = {
    "name": "pillow",
    "version": "9.0.0",
    "vulns": [{"id": "PYSEC-2022-8", "fix_versions": ["9.0.1"], "aliases": [], "description": "…"}],
}


@pytest.mark.parametrize(
    ("packages", "required", "fails", "said"),
    [
        ([CLEAN], True, False, "1 packages audited, no known vulnerability"),
        ([CLEAN, VULNERABLE], False, True, "pillow 9.0.0: PYSEC-2022-8, mended in 9.0.1"),
        ([CLEAN, SKIPPED], False, False, "NOT AUDITED: 1 of 2 packages"),
        ([CLEAN, SKIPPED], True, True, "NOT AUDITED: 1 of 2 packages"),
        ([SKIPPED, VULNERABLE], False, True, "pillow 9.0.0"),
        ([], True, True, "NOT AUDITED: 0 of 0 packages"),
    ],
)
def test_the_verdict(packages, required, fails, said):
    failed, lines = verdict(json.dumps({"dependencies": packages, "fixes": []}), "", required=required)
    assert failed == fails
    assert any(said in line for line in lines)


@pytest.mark.parametrize("required", [True, False])
def test_no_report_at_all(required):
    failed, lines = verdict("", "Traceback\nConnectionError: no route", required=required)
    assert failed == required
    assert "NOT AUDITED" in lines[0] and "no route" in lines[0]
