"""The job beside a soak, whose coordinator attacks: its program runs by itself, as in its pod."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from http.client import HTTPSConnection
from typing import TYPE_CHECKING

from hack.attacks.hostile_service import ANSWERS, BODIES
from hack.soak.hostile_job import manifests
from rollcall_protocol import pod_contract
from tests.certificates import show

if TYPE_CHECKING:
    from pathlib import Path

READ_BYTES = 1 << 16


def _answer(port: int) -> tuple[int, str | None, bytes]:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection("127.0.0.1", port, context=unverified, timeout=20)
    connection.request("GET", pod_contract.OPERATOR_STREAM_ROUTE)
    answer = connection.getresponse()
    read = answer.read(READ_BYTES)
    connection.close()
    return answer.status, answer.getheader("Location"), read


def test_its_program_answers_each_request_in_another_way(tmp_path: Path) -> None:
    program, job = manifests()
    (container,) = job["spec"]["trainer"]["template"]["spec"]["containers"]
    *_, python, path = container["command"]
    assert (python, path) == ("python3", f"/program/{next(iter(program['data']))}")
    alone = tmp_path / "program.py"
    alone.write_text(program["data"]["hostile_service.py"], encoding="utf-8")
    folder = show(tmp_path, "localhost")
    environment = {**os.environ, pod_contract.TLS_DIR: str(folder), pod_contract.POD_UID: "uid-1"}
    here = [sys.executable, str(alone), *container["args"], "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(here, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            for how in ANSWERS:
                status, location, read = _answer(port)
                if how in BODIES:
                    assert status == 200
                    assert (b"uid-1" in read) is how.endswith("reports"), how
                else:
                    assert (status, location) == (307, "/v1/elsewhere")
        finally:
            process.kill()
            process.wait(timeout=10)
