"""The machine's view of workers, on a folder that stands for /proc."""

from pathlib import Path

import pytest

from hack.soak import host_inspection
from hack.soak.soak_history import ROLLOUT, WorkerInstance
from rollcall_protocol import pod_contract


def test_a_worker_that_ends_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_inspection, "PROC", tmp_path)
    variables = {
        pod_contract.POD_NAME: "a-trainer-0",
        pod_contract.POD_UID: "uid",
        pod_contract.POD_IP: "10.0.0.1",
        pod_contract.CONFIG: '{"namespace":"chaos"}',
    }
    for pid in ("12", "13"):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text("python\0/bin/rollcall-trainer\0")
        (tmp_path / pid / "environ").write_text("\0".join(f"{k}={v}" for k, v in variables.items()))
        (tmp_path / pid / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t1\n")
    (tmp_path / "12" / "stat").write_text(f"12 (python) S {' '.join(map(str, range(4, 30)))}")
    (found,) = host_inspection.workers("chaos")
    assert (found.pod, found.incarnation) == (
        "a-trainer-0",
        "12.22",
    )  # the start is field 22 of proc(5)


def process(proc: Path, pid: int, parent: int, command: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    (proc / str(pid) / "status").write_text(f"Name:\tpython\nPPid:\t{parent}\n")


def test_the_server_of_a_rollout_is_the_vllm_that_its_agent_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_inspection, "PROC", tmp_path)
    vllm = "python -m vllm.entrypoints.openai.api_server --uds=/tmp/rollcall-vllm-x/vllm.sock"
    process(tmp_path, 10, 1, "python /bin/rollcall-rollout")
    process(tmp_path, 11, 10, "python -S -E guard.py 7 /tmp/rollcall-vllm-x")
    process(tmp_path, 13, 99, vllm)  # of another rollout
    agent = WorkerInstance("cpu-a", "uid", ROLLOUT, "10.1", "10.0.0.1", 10)
    assert host_inspection.inference_server(agent) is None
    process(tmp_path, 12, 10, vllm)
    assert host_inspection.inference_server(agent) == 12
