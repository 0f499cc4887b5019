"""Networks of workers in tests: no two processes listen on the same addresses."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.networks import LoopbackNetworks


@pytest.fixture
def name() -> str:
    """Of networks that no other test has."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def other_process(name: str) -> Iterator["subprocess.Popen[str]"]:
    """It holds the first networks."""
    code = (
        "import sys; from tests.networks import LoopbackNetworks; "
        f"held = LoopbackNetworks({name!r}); print(held.new(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield process
        process.kill()


def first_network(name: str) -> str:
    with closing(LoopbackNetworks(name)) as networks:
        return networks.new()


def test_each_network_is_given_once(name: str) -> None:
    with closing(LoopbackNetworks(name)) as networks, closing(LoopbackNetworks(name)) as others:
        given = [each.new() for _ in range(300) for each in (networks, others)]
    assert len(set(given)) == len(given)
    assert given[:2] == ["127.2.0", "127.3.0"]


def test_another_process_has_others_until_it_ends(
    name: str, other_process: "subprocess.Popen[str]"
) -> None:
    assert other_process.stdout is not None
    assert other_process.stdout.readline() == "127.2.0\n"
    assert first_network(name) == "127.3.0"
    other_process.kill()
    other_process.wait()
    assert first_network(name) == "127.2.0"


def test_when_all_are_held_it_says_so(name: str) -> None:
    with ExitStack() as stack:
        holders = [stack.enter_context(closing(LoopbackNetworks(name))) for _ in range(249)]
        for holder in holders:
            holder.new()
        with (
            closing(LoopbackNetworks(name)) as late,
            pytest.raises(RuntimeError, match="hold all networks"),
        ):
            late.new()
