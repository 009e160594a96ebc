"""The components that are linked into a wheel: a CycloneDX document, read from the native module.

``python -m release.sbom MODULE NAME VERSION TIME`` prints it, in a process of its own, since it imports the module.
"""

import hashlib
import importlib.util
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cyclonedx.model import Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from release import binary

# Below .dist-info, as PEP 770 has it.
PLACE = "sboms/robustdml_ops.cdx.json"
_EULA = "https://docs.nvidia.com/cuda/eula/"


def sbom(module: Path, name: str, version: str, epoch: int) -> str:
    """The list of components of a wheel's native ``module`` as JSON; ``epoch`` is its time in seconds since 1970."""
    digest, built = hashlib.sha256(module.read_bytes()).hexdigest(), _loaded(module)
    package = PackageURL("pypi", name=name.replace("_", "-"), version=version)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{package}#{digest}"),
        components=[*_inside(built), *_outside(module)],
    )
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
    bom.metadata.component = wheel = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="wheel",
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
        purl=package,
        properties=[Property(name="compiler", value=built.compiler), Property(name="module sha256", value=digest)],
    )
    bom.register_dependency(wheel, bom.components)
    document = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = faults(document)
    if wrong is not None:
        raise ValueError(f"the list of components of {module.name} is not valid: {wrong}")
    return document


def faults(document: str) -> str | None:
    """The first error of ``document`` under CycloneDX's schema, or None."""
    # Its import builds the grammar of web addresses, which takes seconds.
    from cyclonedx.validation.json import JsonStrictValidator

    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document)
    return None if found is None else str(found)


def _inside(built: Any) -> list[Component]:
    """Components that are compiled or linked into the module."""
    found = [
        Component(
            name="pybind11",
            version=built.pybind11_version,
            bom_ref="pybind11",
            licenses=[DisjunctiveLicense(id="BSD-3-Clause")],
            purl=PackageURL("pypi", name="pybind11", version=built.pybind11_version),
            properties=[Property(name="linked", value="compiled in")],
        )
    ]
    if built.cuda_architectures is not None:
        number = built.cuda_runtime_version
        found.append(
            Component(
                name="cudart_static",
                version=f"{number // 1000}.{number % 1000 // 10}",
                bom_ref="cudart_static",
                licenses=[DisjunctiveLicense(name="NVIDIA CUDA Toolkit EULA", url=XsUri(_EULA))],
                properties=[
                    Property(name="linked", value="statically"),
                    Property(name="architectures", value=built.cuda_architectures),
                ],
            )
        )
    return found


def _outside(module: Path) -> list[Component]:
    """Libraries that the module finds where it is loaded. The wheel does not contain them."""
    linked = Property(name="linked", value="found where it is loaded")
    return [
        Component(name=library, bom_ref=library, scope=ComponentScope.EXCLUDED, properties=[linked])
        for library in sorted(binary.read(module).needed)
    ]


def _loaded(module: Path) -> Any:
    spec = importlib.util.spec_from_file_location("robustdml_ops._native", module)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


if __name__ == "__main__":
    print(sbom(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
