"""The machine's view of workers, on a folder that stands for /proc."""

from pathlib import Path

import pytest

from hack.soak import host_inspection
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
