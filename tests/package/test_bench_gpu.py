"""The GPU benchmark as a dry run on the CPU: every section at small shapes, and sections that fail."""

import json
import os
import signal
import sys
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from bench.gpu import packages, rows, running
from bench.gpu.losses import CASES
from bench.gpu.plan import LETTERS, SECTIONS, allowed
from bench.gpu.report import draw
from bench.gpu.sections import build, ceilings, correctness, peers, prism, sanitizer, scaling
from bench.gpu.sections import tests as sections_of_tests
from bench.gpu.sheet import Absent, Sheet
from bench.gpu.variants import GROUPS, of_group
from bench.shapes import Shape
from tests.every_call import PUBLIC_LOSSES
from tests.package.test_interpreter import interpreter_refusal
from tests.subprocesses import run_python

pytest.importorskip("pytorch_metric_learning", reason="rows of the peer are among those that are asked for")
GOES_WRONG = (rows.FAILED, rows.NOT_RUN, rows.NO_MEMORY, rows.ERROR)


@pytest.fixture(scope="module", params=["d", pytest.param(LETTERS, marks=pytest.mark.nightly)])
def letters(request):
    """The sections of a dry run: one of them, and all."""
    return request.param


@pytest.fixture(scope="module")
def folder(letters, tmp_path_factory):
    """What a dry run leaves."""
    if interpreter_refusal():
        pytest.skip(str(interpreter_refusal()))
    out = tmp_path_factory.mktemp("dry-run")
    command = ["-m", "bench.gpu", str(out), "--dry-run", "--only", letters]
    done = run_python(*command, timeout=1500, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert not (out / rows.STARTED).exists()
    return out


@pytest.fixture(scope="module")
def dry_run(folder):
    """All rows of it."""
    return rows.read(folder)


def names(results, letter, *statuses):
    return {row["name"] for row in rows.of_section(results, letter, *statuses)}


def variants(results, letter, *statuses):
    return {(row["name"], row.get("variant")) for row in rows.of_section(results, letter, *statuses)}


def test_nothing_goes_wrong_in_a_dry_run(dry_run, letters):
    told = [(row["section"], row["name"], row["reason"]) for row in dry_run if row["status"] in GOES_WRONG]
    assert not told
    assert {row["section"] for row in dry_run} == set(letters)
    products = {f"product {kind}" for kind in ceilings.PRECISIONS}
    assert names(dry_run, "d", rows.OK) == {"copy", "launch", "products of a chunk", *products}
    for row in dry_run:
        assert row["dry_run"]
        assert row["machine"]["torch"] == torch.__version__
        assert {"gpu", "driver", "python", "triton", "commit"} <= set(row["machine"])
        assert row["run"] == dry_run[0]["run"]


@pytest.mark.nightly
@pytest.mark.parametrize("letters", [LETTERS], indirect=True)
def test_every_section_makes_its_rows(dry_run):
    of_build = {*(f"package {line}" for line in packages.requirements()), *(f"tool {name}" for name in build.TOOLS)}
    assert names(dry_run, "a") == {*of_build, "native module", "Triton"}
    assert "Triton" in names(dry_run, "a", rows.OK)
    assert names(dry_run, "b", rows.OK) == set(sections_of_tests.GROUPS)
    assert variants(dry_run, "c") == {(tool, backend) for tool in sanitizer.TOOLS for backend in sanitizer.BACKENDS}
    assert next(rows.of_section(dry_run, "c", rows.OK))["calls"] > len(CASES)
    in_types = {(row["name"], row.get("dtype")) for row in rows.of_section(dry_run, "e", rows.OK)}
    assert {(name, dtype) for name in CASES for dtype in correctness.BARS} <= in_types
    for letter in "fh":
        asked = {
            (name, f"{group}: {variant.name}", rows.ABSENT if variant.graph else rows.OK)
            for group, (section, steps) in GROUPS.items()
            for name, _ in steps
            for variant in of_group(group)
            if section == letter
        }
        assert {(r["name"], r["variant"], r["status"]) for r in rows.of_section(dry_run, letter)} == asked
    assert names(dry_run, "g") == {name for name, *_ in peers.ROWS}
    absent = {"liger-kernel", "cut-cross-entropy", "linear_cross_entropy"}
    for row in rows.of_section(dry_run, "g", rows.OK):
        assert row["step_s"] > 0
        assert row["name"] == "robustdml, otsu" or row["floor_by"] == "section (d)"
    assert {name.partition(",")[0] for name in names(dry_run, "g", rows.ABSENT)} <= absent
    assert variants(dry_run, "i", rows.OK) >= {("log_p_clean", kind) for kind in prism.SIMILARITIES}
    assert names(dry_run, "i", rows.OK) == {"log_p_clean", "step of the filter", "ResNet-50"}
    assert names(dry_run, "j", rows.OK) == {"proxy-anchor", "proxy-nca", scaling.PEER}
    assert len(list(rows.of_section(dry_run, "j"))) == 3 * len(scaling.CLASSES)


def test_rows_of_every_section_are_drawn(folder, dry_run, letters):
    text = draw(folder)
    assert "a dry run: no figure of a GPU" in text
    assert {f"## ({section.letter}) {section.title}" for section in SECTIONS if section.letter in letters} <= set(
        text.splitlines()
    )
    assert all(f"| {row['name']} " in text for row in dry_run)


def test_every_loss_has_a_case():
    assert set(CASES) == PUBLIC_LOSSES


@pytest.fixture
def out(tmp_path):
    """A folder of results without rows."""
    (tmp_path / rows.MACHINE).write_text("{}")
    return tmp_path


@pytest.fixture
def sheet(out):
    return lambda seconds=60.0, run="first": Sheet("f", out, run, seconds, dry_run=True)


def found(sheet):
    return {row["name"]: row for row in rows.read(sheet().out)}


@pytest.fixture
def log(out):
    with (out / rows.LOG).open("a+") as file:
        yield file


def test_a_measurement_that_fails_leaves_the_others_be(sheet):
    def wrong(shape):
        raise ValueError("a wrong value")

    def missing(shape):
        raise Absent("no such library")

    sheet().row("wrong", wrong)
    sheet().row("missing", missing)
    sheet().row("right", lambda shape: {"step_s": 1.0})
    written = found(sheet)
    statuses = {name: row["status"] for name, row in written.items()}
    assert statuses == {"wrong": rows.ERROR, "missing": rows.ABSENT, "right": rows.OK}
    assert "a wrong value" in written["wrong"]["reason"]
    assert written["wrong"]["traceback"]
    assert written["missing"]["reason"] == "no such library"


@pytest.mark.nightly
def test_where_memory_is_short_the_size_steps_down_and_says_so(sheet, monkeypatch):
    asked = Shape(1024, 4096, 512)
    monkeypatch.setattr(Sheet, "shape", lambda self, shape: shape)

    def hungry(shape):
        if shape.C > 1500:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")
        return {"step_s": 1.0}

    sheet().row("steps down", hungry, asked)
    sheet().row("does not", hungry, asked, step_down=False)
    written = found(sheet)
    assert written["steps down"]["status"] == rows.OK
    assert written["steps down"]["shape"] == asdict(asked)
    assert written["steps down"]["given"] == asdict(Shape(1024, 1024, 512))
    assert written["steps down"]["reason"] == f"out of memory at {asked}"
    assert written["does not"]["status"] == rows.NO_MEMORY
    sheet().row("pairs", lambda shape: hungry(Shape(0, 8 * shape.B, 0)), Shape(512, 0, 64))
    assert found(sheet)["pairs"]["given"]["B"] == 128


def test_a_row_without_time_left_is_not_run(sheet):
    sheet(seconds=0.0).row("late", lambda shape: pytest.fail("it ran"))
    assert found(sheet)["late"]["status"] == rows.NOT_RUN
    assert found(sheet)["late"]["reason"] == "time"


def test_a_row_is_measured_once_in_a_run(sheet):
    sheet().row("once", lambda shape: {"step_s": 1.0})
    sheet().row("once", lambda shape: {"step_s": 2.0})
    assert found(sheet)["once"]["step_s"] == 1.0
    sheet(run="second").row("once", lambda shape: {"step_s": 3.0})
    assert found(sheet)["once"]["step_s"] == 3.0


@pytest.mark.nightly
def test_a_section_that_hangs_ends_with_all_that_it_started(tmp_path, log):
    """Its children end too, since a test run or a sanitizer would occupy the GPU."""
    told = tmp_path / "child"
    child = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    reason = running._child([sys.executable, "-c", code], dict(os.environ), 3.0, log)
    assert reason == "time limit of 3 s"
    for _ in range(100):
        state = Path(f"/proc/{told.read_text()}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child of the section is alive")


def test_how_a_section_ended_is_told(out, log):
    for code, expected in (
        ("print('ready')", None),
        ("raise SystemExit(3)", "the process ended with code 3"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "the process ended by SIGSEGV"),
    ):
        assert running._child([sys.executable, "-c", code], dict(os.environ), 60, log) == expected
    assert "ready" in (out / rows.LOG).read_text()


def test_after_a_crash_the_section_goes_on_without_the_row_that_crashed(out, log, monkeypatch):
    section, crashed = SECTIONS[5], []

    def child(command, environment, seconds, log):
        done = {row["name"] for row in rows.read(out)}
        for name in ("one", "two", "three"):
            if name in done:
                continue
            key = {"section": section.letter, "name": name, "shape": None}
            (out / rows.STARTED).write_text(json.dumps(key))
            if name == "two":
                crashed.append(name)
                return "the process ended by SIGABRT"
            rows.append(out, {**key, "status": rows.OK, "run": "r"})
            (out / rows.STARTED).unlink()
        return None

    monkeypatch.setattr(running, "_child", child)
    running._section(section, out, "r", 60, True, {}, log)
    written = {row["name"]: row for row in rows.read(out)}
    assert crashed == ["two"]
    assert [written[name]["status"] for name in ("one", "two", "three")] == [rows.OK, rows.ERROR, rows.OK]
    assert written["two"]["reason"] == "the process ended by SIGABRT"


def test_a_section_that_does_not_begin_is_an_error(out, log, monkeypatch):
    monkeypatch.setattr(running, "_child", lambda *_: "the process ended with code 1")
    running._section(SECTIONS[0], out, "r", 60, True, {}, log)
    running._section(SECTIONS[1], out, "r", 0, True, {}, log)
    first, second = rows.read(out)
    assert (first["section"], first["name"], first["status"]) == ("a", "the section", rows.ERROR)
    assert (second["section"], second["status"], second["reason"]) == ("b", rows.NOT_RUN, "time")


def test_time_is_kept_for_the_sections_that_follow():
    assert "".join(section.letter for section in SECTIONS) == "abcdefghij"
    assert allowed(SECTIONS[0], SECTIONS, 1500) == SECTIONS[0].limit_s
    left = 1500.0
    for section in SECTIONS:  # each takes all that it may
        given = allowed(section, SECTIONS, left)
        assert given >= section.reserved_s
        left -= given
    assert left >= 0
    assert allowed(SECTIONS[5], SECTIONS[5:7], 100) == 100 - SECTIONS[6].reserved_s
    assert allowed(SECTIONS[5], SECTIONS[5:6], -3) == 0


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><skipped message="no"/></testcase>
<testcase classname="tests.a" name="three"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_tests_are_counted(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    facts = sections_of_tests.counted(path)
    assert (facts["status"], facts["passed"], facts["failed"], facts["skipped"]) == (rows.FAILED, 1, 1, 1)
    assert facts["failures"] == ["tests.a::three: assert 1 == 2"]
    path.write_text(REPORT.replace("failure", "other"))
    assert "status" not in sections_of_tests.counted(path)
    path.write_text("<testsuites/>")
    assert sections_of_tests.counted(path)["reason"] == "none ran"


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        (0, "20 calls\n========= ERROR SUMMARY: 0 errors\n", None),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", None),
        (0, "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", rows.FAILED),
        (0, "========= Invalid __global__ read\n========= ERROR SUMMARY: 1 error\n", rows.FAILED),
        (1, "========= ERROR SUMMARY: 0 errors\n", rows.FAILED),
        (1, "Device not supported\n", rows.FAILED),
        (None, "", rows.NOT_RUN),
    ],
)
def test_reports_of_a_sanitizer(code, text, status):
    assert sanitizer.judged(code, text).get("status") == status


def test_requirements_are_those_of_continuous_integration():
    pinned = dict(
        line.split(";")[0].strip().split("==") for line in Path("constraints.txt").read_text().splitlines()[1:]
    )
    for line in packages.requirements():
        name, _, version = line.partition("==")
        if name in pinned:
            assert version == pinned[name], name


def test_wheels_that_were_carried_along_are_unpacked(tmp_path, log, monkeypatch):
    """An installed package is left alone, and one without a wheel is logged."""
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "carried_along-1.0-py3-none-any.whl", "w") as wheel:
        folder = "carried_along-1.0.dist-info"
        wheel.writestr("carried_along.py", "here = True\n")
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: carried-along\nVersion: 1.0\n")
        wheel.writestr(
            f"{folder}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{folder}/RECORD", "")
    asked = ["left-at-home==1.0", "carried-along==1.0", f"torch=={torch.__version__}"]
    monkeypatch.setattr(packages, "requirements", lambda: asked)
    packages.unpack(wheels, site, log)
    log.flush()
    assert (site / "carried_along.py").exists()
    assert not (site / "torch").exists()
    assert "left-at-home" in (tmp_path / rows.LOG).read_text()


@pytest.mark.nightly
def test_the_command_line_refuses_missing_things_in_one_line(tmp_path):
    without_gpu = [] if torch.cuda.is_available() else [([str(tmp_path)], "no GPU"), ([str(tmp_path)], "--dry-run")]
    for arguments, reason in (
        *without_gpu,
        (["--only", "az"], "--only az: no section z; there are abcdefghij"),
        ([], "OUT, --draw, --adopt or --predict is wanted"),
        ([str(tmp_path), "--wheels", str(tmp_path / "none")], "no such folder"),
        (["--adopt", str(tmp_path)], "holds no results"),
    ):
        done = run_python("-m", "bench.gpu", *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
