"""The environment of a worker's container, for programs that run in the test's own process."""

import json
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import ReferencePodConfig
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime.worker import program
from rollcall_runtime.worker.logs import JobLogFormatter
from tests.networks import own_network
from tests.unit.rollcall_runtime.credentials import ISSUER
from tests.unit.rollcall_runtime.jobs import job_config, pool_config


def use_container(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set what the operator and the kubelet would set; returns the container's termination log."""
    config = job_config()
    mounted = ISSUER.mount(
        folder,
        job_uid=config.uid,
        pod="reverse-trainer-0",
        pod_uid="uid-1",
        namespace=config.namespace,
    )
    termination = folder / "termination-log"
    termination.touch()
    monkeypatch.setattr(pod_contract, "TERMINATION_LOG", str(termination))
    # The root logger belongs to pytest here.
    monkeypatch.setattr(program, "configure_logs", lambda **_: JobLogFormatter({}))
    for name, value in {
        pod_contract.COORDINATOR: "127.0.0.1",
        pod_contract.POD_NAME: "reverse-trainer-0",
        pod_contract.POD_UID: "uid-1",
        # Programs of other tests listen on the same ports.
        pod_contract.POD_IP: f"{own_network()}.1",
        **mounted,
        pod_contract.STATE_DIR: str(folder),
        pod_contract.CONFIG: json.dumps(encode(config)),
        pod_contract.POOL_CONFIG: json.dumps(encode(pool_config())),
        pod_contract.REFERENCE_CONFIG: json.dumps(encode(ReferencePodConfig(device="cpu"))),
    }.items():
        monkeypatch.setenv(name, value)
    return termination
