"""Mooncake between IPv6 addresses, in both engines that use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from tests.plugins.transports.transport import transport

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mooncake", "kimi"])
def test_members_with_ipv6_addresses_read_from_each_other(engine: str) -> None:
    """In a process of its own: Mooncake reads the address family when it is imported."""
    transport(engine)
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, engine],
        cwd=ROOT,
        env=os.environ | {pod_contract.POD_IP: "::1"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "read over IPv6" in ended.stdout, ended.stderr[-2000:]


_PROGRAM = """
import sys
from rollcall_runtime.sync.registry import engine_class
from tests.unit.rollcall_runtime.sync.copying_peers import Local, abort

engine = engine_class(sys.argv[1], device="cpu")
settings = engine.settings_type(operation_bytes=1 << 20)
members = Local(engine, 2, settings, nbytes=4 << 20, address="::1")
assert members.engines[0]._describe()["segment"].startswith("[::1]:")
sessions = members.join(range(3))
members.transfer(sessions, members.fill(1, bucket=1 << 20))
abort(sessions)
members.close()
print("read over IPv6", flush=True)
"""
