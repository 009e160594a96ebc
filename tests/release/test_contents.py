"""Faults of a wheel are found. The wheels of these tests hold the installed native module."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from release import archives, binary, contents, sbom
from tests.native import native_builds
from tests.subprocesses import ROOT

NAME = "robustdml_ops-0.1.0+cpu-cp311-cp311-manylinux_2_99_x86_64.whl"
INFO = "robustdml_ops-0.1.0+cpu.dist-info"
METADATA = b"Metadata-Version: 2.4\nName: robustdml_ops\nVersion: 0.1.0+cpu\nLicense-Expression: Apache-2.0\n\n"


@pytest.fixture(scope="module")
def module(native):
    if not hasattr(native, "pybind11_version"):
        pytest.skip("the native module is older than the tree: pip install -e .")
    return Path(native.__file__)


@pytest.fixture(scope="module")
def listed(module):
    return sbom.sbom(module, "robustdml_ops", "0.1.0+cpu", 1_700_000_000)


@pytest.fixture
def make(tmp_path, module, listed, monkeypatch):
    """Writes a wheel with changes to its files; None takes one away."""
    monkeypatch.setattr(archives, "LEVEL", 1)  # in a tenth of the time

    def written(changes=(), name=NAME, record=True):
        files = {
            "robustdml_ops/__init__.py": b"",
            f"robustdml_ops/{module.name}": module.read_bytes(),
            f"{INFO}/METADATA": METADATA,
            f"{INFO}/RECORD": b"",
            f"{INFO}/{sbom.PLACE}": listed.encode(),
            f"{INFO}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
            f"{INFO}/licenses/LICENSES/pybind11.txt": (ROOT / "LICENSES" / "pybind11.txt").read_bytes(),
        }
        files.update(changes)
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for key, content in files.items():
                if content is not None:
                    archive.writestr(key, content)
        if record:
            archives.rewrite_wheel(tmp_path / name, 1_700_000_000, {})
        return contents.faults(tmp_path / name, tmp_path)

    return written


def test_a_wheel_as_it_should_be_and_one_too_large(make, monkeypatch):
    assert make() == []
    monkeypatch.setattr(contents, "LARGEST", 1000)
    assert any("more than 0" in fault for fault in make())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tests/__init__.py": b""}, "installs ['tests'] beside the package"),
        ({"robustdml_ops.libs/libgomp-1.so": b""}, "expected the native module and no other library"),
        ({f"{INFO}/licenses/LICENSES/pybind11.txt": None}, "no LICENSES/pybind11.txt"),
        ({f"{INFO}/METADATA": METADATA.replace(b"+cpu", b"")}, "the name says version 0.1.0+cpu, METADATA 0.1.0"),
        ({f"{INFO}/METADATA": METADATA.replace(b"Apache-2.0", b"MIT")}, "License-Expression is MIT"),
        ({f"{INFO}/{sbom.PLACE}": None}, "list of components: there is none"),
        ({f"{INFO}/{sbom.PLACE}": b'{"bomFormat": "CycloneDX"}'}, "list of components: "),
    ],
)
def test_what_is_wrong_is_said(make, changes, said):
    assert any(said in fault for fault in make(changes)), make(changes)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"record": False}, "RECORD and archive differ"),
        ({"name": NAME.replace("manylinux_2_99", "linux")}, "names no oldest glibc"),  # not repaired
        ({"name": NAME.replace("2_99", "2_5")}, "needs glibc"),
    ],
)
def test_a_wrong_record_or_name_is_said(make, settings, said):
    assert any(said in fault for fault in make(**settings))


def test_the_application_s_wheel(tmp_path):
    name, info = "robustdml-0.1.0-py3-none-any.whl", "robustdml-0.1.0.dist-info"
    asks = b"Requires-Dist: robustdml_ops==0.1.0\n"
    right = {
        "robustdml/__init__.py": b"",
        f"{info}/METADATA": METADATA.replace(b"_ops", b"").replace(b"+cpu", b"").replace(b"\n\n", b"\n" + asks + b"\n"),
        f"{info}/licenses/LICENSE": b"Apache",
    }
    for changes, said in (
        ({}, None),
        ({"robustdml/_native.so": b""}, "robustdml/_native.so is compiled"),
        ({"tests/__init__.py": b""}, "installs ['tests'] beside the package"),
        ({f"{info}/METADATA": right[f"{info}/METADATA"].replace(asks, b"")}, "does not ask for the library"),
        ({f"{info}/licenses/LICENSE": b""}, "no LICENSE"),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for key, content in (right | changes).items():
                archive.writestr(key, content)
        archives.rewrite_wheel(tmp_path / name, 1_700_000_000, {})
        faults = contents.faults(tmp_path / name, tmp_path)
        assert faults == [] if said is None else [said in fault for fault in faults] == [True], faults


def test_another_library_s_symbols(make, module, tmp_path):
    compiler = native_builds.tool("c++")
    if compiler is None:
        pytest.skip("no c++")
    other, source = tmp_path / "libother.so", tmp_path / "of.cpp"
    source.write_text('extern "C" int g(); extern "C" int PyInit__native() { return g(); } int f() { return 0; }')
    (tmp_path / "other.cpp").write_text('extern "C" int g() { return 1; }')
    library = [compiler, "-shared", "-fPIC"]
    subprocess.run([*library, tmp_path / "other.cpp", "-o", other], check=True)
    linked = [source, "-o", tmp_path / "made.so", other, "-Wl,-rpath,/opt/lib,-soname,made.so"]
    subprocess.run([*library, *linked], check=True)
    faults = make({f"robustdml_ops/{module.name}": (tmp_path / "made.so").read_bytes()})
    for said in ("exports 2 symbols", "libother.so", "looked for in ['/opt/lib']"):
        assert any(said in fault for fault in faults), faults


def test_the_module_offers_python_s_symbol_alone_and_links_no_torch(module):
    read = binary.read(module)
    assert read.exported == {"PyInit__native"}
    assert not read.paths
    assert read.needed <= contents.LIBRARIES
    assert read.newest("GLIBC") >= (2, 2)


def test_the_list_of_components_is_of_what_is_linked(module, listed, native):
    assert sbom.faults(listed) is None
    assert f'"version": "{native.pybind11_version}"' in listed
    assert all(f'"name": "{library}"' in listed for library in binary.read(module).needed)
    assert ("cudart_static" in listed) == (native.cuda_architectures is not None)
    assert listed == sbom.sbom(module, "robustdml_ops", "0.1.0+cpu", 1_700_000_000)
