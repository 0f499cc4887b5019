"""`make sbom` lists what the images contain."""

import json
from pathlib import Path

import pytest

from hack.cluster import images, sbom


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_image_is_listed_with_its_packages_of_debian_and_python(tmp_path: Path) -> None:
    images.build(images.DEFAULT)
    written = sbom.write(images.DEFAULT, prefix=images.PREFIX, tag=images.TAG, folder=tmp_path)
    assert [path.name for path in written] == ["operator.cdx.json", "worker-cpu.cdx.json"]
    operator, worker = (purls(path) for path in written)
    for listed in (operator, worker):
        assert {"pkg:deb/debian/libc6", "pkg:pypi/aiohttp", "pkg:pypi/rollcall"} <= listed
    assert {"pkg:pypi/torch", "pkg:deb/debian/python3-torch"} <= worker - operator


def purls(path: Path) -> set[str]:
    """The package URLs of a list, without versions."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    components = document["components"]
    assert all(component.get("version") for component in components if "purl" in component)
    return {component["purl"].split("@")[0] for component in components if "purl" in component}
