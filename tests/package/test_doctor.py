"""The doctor finds what is wrong, and says what to do; without the extras, too."""

import json
import subprocess
import sys

import pytest
import torch

from robustdml_ops import native_module
from robustdml_ops.doctor import machine, ops, speed, versions
from robustdml_ops.doctor.command import main

CPU = torch.device("cpu")


def test_every_room_is_examined_and_exact():
    backends, *rooms = ops.served(CPU)
    assert backends.well and backends.facts["able"][-1] == "eager"
    assert "triton" in backends.facts["unable"]
    assert [one.name for one in rooms] == [f"{room} on cpu" for room in ops.ROOMS]
    for one in rooms:
        assert one.well, one
        assert all(0 <= error < 1e-4 for error in one.facts["errors"].values()), one


def test_a_backend_that_is_wrong_is_found(monkeypatch):
    table, op = ops.ROOMS["similarity"]

    def wrong(given, backend):
        (S,) = op(given, backend)
        return (S * (1 + 1e-3 * (given.X.dtype == torch.float32)),)

    monkeypatch.setitem(ops.ROOMS, "similarity", (table, wrong))
    found = next(one for one in ops.served(CPU) if one.name.startswith("similarity"))
    assert not found.well
    assert "ROBUSTDML_BACKEND=eager" in found.way_out


def test_a_backend_that_fails_is_told_by_its_error(monkeypatch):
    table, _ = ops.ROOMS["otsu"]

    def fails(given, backend):
        if given.X.dtype == torch.float32:
            raise RuntimeError("no such thing\nsecond line")
        return (given.values,)

    monkeypatch.setitem(ops.ROOMS, "otsu", (table, fails))
    found = next(one for one in ops.served(CPU) if one.name.startswith("otsu"))
    assert not found.well
    assert "RuntimeError: no such thing" in found.way_out
    assert "second line" not in found.way_out


def test_no_native_module_is_a_finding(monkeypatch):
    monkeypatch.setattr(native_module, "library", None)
    monkeypatch.setattr(native_module, "_REASON", "the native module is not installed", raising=False)
    found = versions.native()
    assert not found.well
    assert "compiler" in found.way_out


def test_more_threads_than_processors_is_a_finding():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert machine.threads().well
        torch.set_num_threads(10_000)
        assert "OMP_NUM_THREADS" in machine.threads().way_out
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("libraries", "well"),
    [
        (["/x/torch/lib/libgomp.so.1", "/x/torch/lib/libgomp.so.1", "/lib/libc.so.6"], True),
        (["/x/torch/lib/libgomp.so.1", "/y/sklearn.libs/libgomp-a34b3233.so.1.0.0"], False),
        (["/x/libgomp.so.1", "/x/libiomp5.so"], False),
        ([], True),
    ],
)
def test_two_pools_of_threads_are_a_finding(libraries, well, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "".join(f"7f00-7f01 r-xp 00000000 fe:00 1   {name}\n" for name in libraries) + "7f02-7f03 rw-p 0 0:0 0\n"
    )
    found = machine.pools(maps)
    assert found.well == well
    assert len(found.facts["libraries"]) == len(set(libraries) - {"/lib/libc.so.6"})


@pytest.mark.parametrize(("idle", "well"), [(95, True), (30, False)])
def test_a_busy_machine_is_a_finding(idle, well, tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(
        machine.time, "sleep", lambda seconds: stat.write_text(f"cpu {100 - idle} 0 0 {idle} 0 0 0 0 0 0\n")
    )
    found = machine.busy(stat=stat)
    assert found.well == well
    assert found.facts["busy"] == pytest.approx(1 - idle / 100)


def test_speed_is_that_of_a_sweep_and_its_products(monkeypatch):
    monkeypatch.setattr(speed, "C", 500)
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    found = speed.sweep_against_products("eager", CPU)
    assert found.facts["ratio"] == pytest.approx(found.facts["seconds"] / found.facts["products"])
    assert found.facts["seconds"] > 0


def test_exit_status_and_json_agree(capsys, monkeypatch):
    monkeypatch.setattr(speed, "C", 500)
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    status = main(["--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["well"] == all(one["well"] for one in told["findings"])
    assert status == (0 if told["well"] else 1)
    assert all((one["way_out"] is None) == one["well"] for one in told["findings"])


def test_it_needs_no_extra():
    """In a process where what the extras bring can't be imported."""
    code = (
        "import sys\n"
        "extras = 'matplotlib rich sklearn yaml PIL pytorch_metric_learning scipy'.split()\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in extras:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "from robustdml_ops.doctor import speed\n"
        "speed.C, speed.SECONDS = 500, 0.05\n"
        "from robustdml_ops.__main__ import main\n"
        "sys.argv = ['robustdml', 'doctor']\n"
        "status = main()\n"
        "print('status', status)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] in ("status 0", "status 1")
    assert "similarity on cpu" in out
