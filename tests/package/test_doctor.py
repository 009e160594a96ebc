"""The doctor finds each fault and names its remedy, with the library's own dependencies alone."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from robustdml_ops import doctor
from robustdml_ops.backends import native_module, self_check
from robustdml_ops.doctor import machine, main, ops
from robustdml_ops.doctor.machine import Finding
from tests.subprocesses import run_python

CPU = torch.device("cpu")


def test_every_primitive_is_examined_and_exact():
    backends, *primitives = ops.served(CPU)
    assert backends.way_out is None and backends.facts["able"][-1] == "eager"
    assert "triton" in backends.facts["unable"]
    for one, primitive in zip(primitives, self_check.PRIMITIVES.values(), strict=True):
        assert one.way_out is None, one
        assert one.name == f"{primitive.name} on cpu"
        assert re.search(r"serves; \w+[\w.]*(, \w+)* from float64: ", one.told), one
        for errors in one.facts["errors"].values():
            assert list(errors) == list(primitive.cases)
            assert all(0 <= error < (1e-2 if "bfloat16" in case else 1e-4) for case, error in errors.items()), one
        assert set(one.facts["able"]) | set(one.facts["others"]) | {"triton"} == set(ops.UNAVAILABLE)


def fails(*_):
    raise RuntimeError("no such\nthing")


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (lambda: [torch.ones(3) + 1e-3], "op by eager: its error is 1.0e-03, and may be 2.4e-04"),
        (fails, "RuntimeError: no such"),
    ],
)
def test_a_backend_that_is_wrong_or_fails_is_found(results, told, monkeypatch):
    primitive = next(one for one in self_check.PRIMITIVES.values() if one.name == "similarity")
    case = next(iter(primitive.cases.values()))
    case = case._replace(
        inputs=lambda device, exact: exact, op=lambda exact, _: [torch.ones(3)] if exact else results()
    )
    monkeypatch.setitem(self_check.PRIMITIVES, id(primitive.backends), primitive._replace(cases={"op": case}))
    found = next(one for one in ops.served(CPU) if one.name.startswith("similarity"))
    assert "ROBUSTDML_BACKEND=eager" in found.way_out
    assert told in found.way_out and "thing" not in found.way_out


def test_a_backend_that_was_asked_for_in_vain_is_a_finding(monkeypatch):
    monkeypatch.setenv("ROBUSTDML_BACKEND", "triton")
    assert ops._backends(CPU).way_out.startswith("ROBUSTDML_BACKEND=triton can't be had: unset it, or name one of")


def test_no_native_module_is_a_finding(monkeypatch):
    monkeypatch.setattr(native_module, "library", None)
    monkeypatch.setattr(native_module, "_REASON", "the native module is not installed", raising=False)
    found = machine.native()
    assert found.way_out
    assert "compiler" in found.way_out


@pytest.mark.parametrize(
    ("threads", "asked", "quota", "remedy"),
    [
        (1, None, "", None),
        (10_000, None, "", "set OMP_NUM_THREADS=64: more threads"),
        (1, "1", "", None),
        (1, " 1 , 2", "", None),
        *((1, asked, "", f"OMP_NUM_THREADS={asked!r} is no number") for asked in ("abc", "0", "-3", "")),
        (4, None, "max 100000", None),
        (4, None, "200000 100000", "set OMP_NUM_THREADS=2:"),
        (4, None, "50000 100000", "set OMP_NUM_THREADS=1:"),
    ],
)
def test_threads_beyond_what_this_process_may_use(threads, asked, quota, remedy, tmp_path, monkeypatch):
    """A quota is that of a container; an empty file of it, as none, sets no limit."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    (tmp_path / "cpu.max").write_text(quota)
    found = machine.threads(tmp_path / "cpu.max")
    assert (found.way_out is None) == (remedy is None)
    assert remedy is None or found.way_out.startswith(remedy)
    assert machine.threads(tmp_path / "none").facts["quota"] is None


@pytest.mark.parametrize(
    ("libraries", "well"),
    [
        (["/x/torch/lib/libgomp.so.1", "/x/torch/lib/libgomp.so.1", "/lib/libc.so.6"], True),
        (["/x/torch/lib/libgomp.so.1", "/y/sklearn.libs/libgomp-a34b3233.so.1.0.0"], False),
        (["/x/libgomp.so.1", "/x/libiomp5.so"], False),
        (["/x y/libgomp.so.1", "/x y/libgomp.so.1 (deleted)"], True),
        (["/x y/libgomp.so.1 (deleted)", "/z/libomp.so"], False),
        ([], True),
    ],
)
def test_two_pools_of_threads_are_a_finding(libraries, well, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "".join(f"7f00-7f01 r-xp 00000000 fe:00 1   {name}\n" for name in libraries) + "7f02-7f03 rw-p 0 0:0 0\n"
    )
    found = machine.pools(maps)
    assert (found.way_out is None) == well
    names = {name.removesuffix(" (deleted)") for name in libraries}
    assert len(found.facts["libraries"]) == len(names - {"/lib/libc.so.6"})


@pytest.mark.parametrize(("idle", "well"), [(95, True), (30, False)])
def test_a_busy_machine_is_a_finding(idle, well, tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(
        machine.time, "sleep", lambda seconds: stat.write_text(f"cpu {100 - idle} 0 0 {idle} 0 0 0 0 0 0\n")
    )
    found = machine.busy(stat=stat)
    assert (found.way_out is None) == well
    assert found.facts["busy"] == pytest.approx(1 - idle / 100)


def test_exit_status_and_json_agree(capsys, monkeypatch):
    monkeypatch.setattr(ops, "C", 500)
    monkeypatch.setattr(ops, "SECONDS", 0.05)
    status = main(["--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["well"] == all(one["severity"] != "fault" for one in told["findings"])
    assert status == (0 if told["well"] else 1)
    assert all((one["way_out"] is None) == (one["severity"] == "ok") for one in told["findings"])
    speed = next(one for one in told["findings"] if one["name"] == "speed on cpu")
    assert speed["seconds"] > 0 and speed["ratio"] == pytest.approx(speed["seconds"] / speed["products"])


def test_a_busy_machine_is_no_fault_unless_that_is_asked(capsys, monkeypatch):
    """A node of a cluster that other jobs use passes its check."""
    busy = Finding("other work", "94% of the machine is busy", "time nothing now", slows=True)
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("versions", "torch 9"), busy])
    assert main([]) == 0
    assert capsys.readouterr().out.endswith("→ time nothing now\n1 note\n")
    assert main(["--strict"]) == 1
    fault = Finding("anchor on cpu", "triton is wrong", "set ROBUSTDML_BACKEND=eager")
    monkeypatch.setattr(doctor, "examine", lambda: [busy, fault, fault])
    assert main(["--json"]) == 1
    assert main([]) == 1
    assert capsys.readouterr().out.endswith("2 faults, 1 note\n")


def test_it_runs_as_a_module_and_needs_no_extra():
    """In a process where what the extras bring can't be imported."""
    code = (
        "import runpy, sys\n"
        "sys.modules |= dict.fromkeys('matplotlib rich sklearn yaml PIL pytorch_metric_learning scipy'.split())\n"
        "from robustdml_ops.doctor import ops\n"
        "ops.C, ops.SECONDS, sys.argv = 500, 0.05, ['doctor']\n"
        "runpy.run_module('robustdml_ops.doctor', run_name='__main__')"
    )
    done = run_python("-c", code)
    assert done.returncode in (0, 1), done.stderr
    assert "similarity on cpu" in done.stdout


def test_a_system_that_tells_nothing(tmp_path):
    """No /proc, or one that is cut off: nothing is found, and nothing is wrong."""
    for content in (None, "", "cpu 1 2\n", "cpu x x x x x x x x\n"):
        if content is not None:
            (tmp_path / "stat").write_text(content)
        found = machine.busy(0, tmp_path / "stat")
        assert found.way_out is None and "can't be told" in found.told
    assert machine.pools(tmp_path / "maps").way_out is None


def test_folders_that_cannot_be_written_to(tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine.self_check, "folder", lambda: tmp_path / "cache" / "deep")
    assert machine.folders().way_out is None
    assert not (tmp_path / "cache").exists()
    # Root may write to any folder; a file is no folder to anyone.
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine.self_check, "folder", lambda: tmp_path / "file" / "cache")
    monkeypatch.setattr(machine.tempfile, "gettempdir", no_home)
    found = machine.folders()
    assert found.way_out
    assert f"(ROBUSTDML_CACHE): {tmp_path / 'file' / 'cache'} can't be written to (" in found.way_out
    assert "(TMPDIR): could not determine home directory" in found.way_out


@pytest.mark.parametrize("text", ["NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n", ""])
def test_a_driver_that_pytorch_cannot_use(text, tmp_path, monkeypatch):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    found = machine.devices(tmp_path / "version")
    assert found.way_out and "install one with CUDA" in found.way_out
    assert found.facts["driver"] == ("550.54.14" if text else "of an unknown version")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    found = machine.devices(tmp_path / "version")
    assert "PyTorch can't use the card" in found.way_out and "CUDA 13.0" in found.way_out
    assert machine.devices(tmp_path / "none").facts["driver"] is None


def test_a_native_module_of_another_version_is_to_be_reinstalled(monkeypatch):
    """One that lacks functions which Python calls, as after an update that did not build it anew."""
    old = SimpleNamespace(cuda_architectures=None, __file__="_native.so")
    monkeypatch.setattr(native_module, "library", old)
    found = next(one for one in ops.served(CPU) if one.name.startswith("vmf"))
    assert found.way_out
    assert found.way_out.startswith("the native module is of another version of this package: reinstall")


def test_what_cannot_be_looked_at_is_a_finding_and_the_rest_is_told(monkeypatch):
    for module, name in ((machine, "versions"), (machine, "native"), (machine, "pools"), (machine, "busy")):
        monkeypatch.setattr(module, name, fails)
    monkeypatch.setattr(ops, "sweep_against_products", fails)
    otsu = next(primitive for primitive in self_check.PRIMITIVES.values() if primitive.name == "otsu")
    monkeypatch.setattr(self_check, "PRIMITIVES", {0: otsu, 1: self_check.Primitive("none", {}, {})})
    findings = {one.name: one for one in doctor.examine()}
    ill = {"versions", "native module", "OpenMP", "speed on cpu", "other work", "none on cpu"}
    assert ill <= {name for name, one in findings.items() if one.way_out}
    assert findings["versions"].told == "could not be looked at: RuntimeError: no such"
    assert findings["otsu on cpu"].way_out is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_findings_that_cannot_be_printed_are_no_success():
    code = (
        "import sys; from robustdml_ops import doctor; doctor.examine = lambda: []\n"
        "doctor._show = lambda _: print('found')\n"
        "sys.exit(doctor.main([]))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "robustdml_ops.doctor: the findings could not be printed: [Errno 28]" in done.stderr
    assert "Traceback" not in done.stderr
