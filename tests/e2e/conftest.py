"""Cluster, images and operator once for all end-to-end tests; a namespace for each test."""

from collections.abc import Iterator

import pytest

from hack.cluster import installation
from hack.cluster.kubectl import Kubectl


@pytest.fixture(scope="session")
def installed() -> Kubectl:
    """The cluster with the operator in it."""
    return installation.ensure()


@pytest.fixture
def kubectl(installed: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """Kubectl in a namespace of the test's own, which is gone afterwards."""
    name = (
        f"e2e-{request.node.originalname.removeprefix('test_').replace('_', '-')[:40].strip('-')}"
    )
    installed.run("delete", "namespace", name, "--ignore-not-found", seconds=120)
    installed.run("create", "namespace", name)
    yield installed.within(name)
    installed.run("delete", "namespace", name, "--wait=false")
