"""Builds ``robustdml_ops._native`` with CMake, and says the version; everything else is in pyproject.toml.

``ROBUSTDML_CUDA=ON|OFF`` forces the CUDA part (default: built when nvcc is found); ``TORCH_CUDA_ARCH_LIST`` names the
architectures. Where either asks for CUDA, a build without it fails; elsewhere the module tells what was left out and
why, and ``python -m robustdml_ops.doctor`` shows it. ``ROBUSTDML_LABEL=1`` adds to the version what is built, as in
0.1.0+cpu and 0.1.0+cu130. Where no compiler works the install still succeeds and the package runs on its ``eager``
backend.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
NO_QUOTES = str.maketrans({'"': "'", "\\": "/"})


def version() -> str:
    """``__version__`` of the package, the one place that has it, and with ``ROBUSTDML_LABEL=1`` which build it is."""
    stated = re.search(r'^__version__ = "(.+)"$', (ROOT / "robustdml_ops" / "__init__.py").read_text(), re.MULTILINE)
    if os.environ.get("ROBUSTDML_LABEL") != "1":
        return stated[1]
    nvcc = None if cuda_setting() == "OFF" else find_nvcc()
    return f"{stated[1]}+{'cu' + toolkit(nvcc) if nvcc else 'cpu'}"


def toolkit(nvcc: str) -> str:
    """Version of CUDA's toolkit as PyTorch's wheels write it: 130 for 13.0."""
    said = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return "".join(re.search(r"release (\d+)\.(\d+)", said).groups())


def cuda_setting() -> str:
    """``ON``, ``OFF`` or ``AUTO``, from the environment; ON without nvcc ends the build."""
    setting = os.environ.get("ROBUSTDML_CUDA", "AUTO").upper()
    if setting not in ("ON", "OFF", "AUTO"):
        sys.exit(f"ROBUSTDML_CUDA={setting!r}: expected ON, OFF or nothing")
    if setting == "ON" and not find_nvcc():
        sys.exit(
            "ROBUSTDML_CUDA=ON, but no nvcc: put it on PATH, or set CUDACXX or CUDA_HOME, or drop ROBUSTDML_CUDA to "
            "build for the CPU alone"
        )
    return setting


def find_nvcc() -> str | None:
    """The CUDA compiler, where CMake would look for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


class CMakeBuild(build_ext):
    """Runs CMake; a failure is fatal only where the CUDA part was asked for."""

    def build_extension(self, ext: Extension) -> None:
        setting, nvcc = cuda_setting(), find_nvcc()
        left_out = "ROBUSTDML_CUDA was OFF" if setting == "OFF" else "no nvcc was found"
        if setting != "OFF" and nvcc:
            try:
                return self.run_cmake(ext, nvcc)
            except (OSError, RuntimeError, ImportError) as error:
                if setting == "ON" or os.environ.get("TORCH_CUDA_ARCH_LIST"):
                    raise
                left_out = f"the build with {nvcc} failed: {error}"
                print(f"robustdml_ops: no CUDA part, {left_out}; trying without", file=sys.stderr)
        try:
            self.run_cmake(ext, None, left_out)
        except (OSError, RuntimeError, ImportError) as error:
            if os.environ.get("ROBUSTDML_REQUIRE_NATIVE") == "1":
                raise
            print(
                f"robustdml_ops: no native module ({error}); the package will run on backend 'eager'", file=sys.stderr
            )

    def run_cmake(self, ext: Extension, nvcc: str | None, left_out: str = "") -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
            f"-DCMAKE_BUILD_TYPE={os.environ.get('CMAKE_BUILD_TYPE', 'Release')}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DROBUSTDML_CUDA={'ON' if nvcc else 'OFF'}",
            # It becomes a string of C++.
            f"-DROBUSTDML_CUDA_LEFT_OUT={re.sub(r'[^ -~]|[;$]', ' ', left_out).translate(NO_QUOTES)}",
        ]  # fmt: skip
        if nvcc:
            configure.append(f"-DCMAKE_CUDA_COMPILER={nvcc}")
        target.parent.mkdir(parents=True, exist_ok=True)
        run_build(configure)
        run_build(["cmake", "--build", str(build)])


def run_build(command: list[str]) -> None:
    """Run a command and show what it says; RuntimeError with the line of its first error."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    print(result.stdout, end="", flush=True)
    if result.returncode:
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()] or ["it said nothing"]
        # nvcc's own sentence, or the first error, whose place CMake writes on one line and the sentence on the next.
        found = [i for kind in ("nvcc fatal", "error") for i, line in enumerate(lines) if kind in line.lower()]
        first = found[0] if found else len(lines) - 1
        raise RuntimeError(f"{' '.join(command[:2])}: {' '.join(lines[first : first + 2])[:300]}")


# Optional: where nothing was built there is nothing to copy. What must not fail is raised above.
setup(
    version=version(),
    ext_modules=[Extension("robustdml_ops._native", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
