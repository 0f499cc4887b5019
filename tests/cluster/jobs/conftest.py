"""Cluster, images and operator once for all end-to-end tests; a namespace for each test."""

import os
from collections.abc import Iterator

import pytest

from hack.cluster import images, installation
from hack.cluster.examples import PREFIX, TAG
from hack.cluster.kubectl import Kubectl

_INSTALLED = "ROLLCALL_E2E_INSTALLED"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Install before the first test, whose time-out this would exceed on a new machine.

    With pytest-xdist the controller does it, once for all workers.
    """
    is_worker = hasattr(session.config, "workerinput")
    if not (is_worker or session.config.option.collectonly):
        installation.ensure()
        os.environ[_INSTALLED] = str(os.getpid())


@pytest.fixture(scope="session")
def installed() -> Kubectl:
    """The cluster with the operator in it."""
    return installation.connect() if _INSTALLED in os.environ else installation.ensure()


@pytest.fixture(scope="session")
def engines_image(installed: Kubectl) -> str:
    """The image that has every training engine; minutes if it must be built."""
    installation.ensure_image("worker-engines")
    return images.full_name("worker-engines", prefix=PREFIX, tag=TAG)


@pytest.fixture(scope="session")
def smollm2_image(installed: Kubectl) -> None:
    """The image that holds SmolLM2 is in the nodes; minutes if it must be built."""
    installation.ensure_image("model-smollm2")


@pytest.fixture(scope="session")
def vllm_nodes(installed: Kubectl) -> list[str]:
    """Some nodes that have the image worker-vllm, of which one will do; minutes if it is absent."""
    return installation.ensure_image("worker-vllm", most=1)


@pytest.fixture
def kubectl(installed: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """Kubectl in a namespace of the test's own, which is gone afterwards."""
    # With the parameters: two cases of one test may run side by side.
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower())
    name = f"e2e-{name.removeprefix('test-')[-50:].strip('-')}"
    yield installed.fresh_namespace(name)
    installed.run("delete", "namespace", name, "--wait=false")
