"""The configuration that kind and its engine get on different machines."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

import pytest

from hack.cluster import docker_engine, kind, lifecycle, machine, subprocesses
from hack.cluster.errors import ClusterError, CommandError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_ordinary_machine_gets_kinds_defaults() -> None:
    config = kind.configuration(sys_resource=True, cgroup_v2=True)
    nodes = config["nodes"]
    assert isinstance(nodes, list)
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker"]
    assert "containerdConfigPatches" not in config
    assert "kubeadmConfigPatches" not in config


def test_containerd_leaves_memory_scores_alone_where_it_may_not_lower_them() -> None:
    config = kind.configuration(sys_resource=False, cgroup_v2=True)
    assert "restrict_oom_score_adj = true" in str(config["containerdConfigPatches"])


def test_the_kubelet_accepts_control_groups_of_version_1_where_there_is_no_other() -> None:
    config = kind.configuration(sys_resource=True, cgroup_v2=False)
    patches = config["kubeadmConfigPatches"]
    assert isinstance(patches, list)
    assert json.loads(patches[0]) == {"kind": "KubeletConfiguration", "failCgroupV1": False}


def test_the_nodes_network_avoids_the_machines_own() -> None:
    taken = [ipaddress.IPv4Network("10.213.0.0/23"), ipaddress.IPv4Network("192.168.0.0/16")]
    assert docker_engine.free_subnet(taken) == "10.213.2.0/24"
    with pytest.raises(ClusterError, match="no free range"):
        docker_engine.free_subnet([ipaddress.IPv4Network("10.0.0.0/8")])


def test_settings_are_set_back_only_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PROC", tmp_path)
    folder = tmp_path / "sys" / "vm"
    folder.mkdir(parents=True)
    (folder / "overcommit_memory").write_text("0\n")
    (folder / "panic_on_oom").write_text("0\n")
    saved = machine.read_sysctls(["vm/overcommit_memory", "vm/panic_on_oom", "vm/absent"])
    (folder / "overcommit_memory").write_text("1\n")
    assert machine.restore_sysctls(saved) == ["vm/overcommit_memory"]
    assert (folder / "overcommit_memory").read_text() == "0"


def test_an_existing_cluster_is_the_first_of_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.touch()
    monkeypatch.setenv("ROLLCALL_USE_KUBECONFIG", "1")
    monkeypatch.setenv("KUBECONFIG", f"{config}:/elsewhere")
    assert lifecycle.kubeconfig() == config
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(ClusterError, match="there is no"):
        lifecycle.kubeconfig()


def test_a_failed_program_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"exit status 3\nno such thing"):
        subprocesses.run(["sh", "-c", "echo no such thing >&2; exit 3"], timeout_s=10)
    with pytest.raises(CommandError, match=r"exit status 3\nlogged"):
        subprocesses.run(["sh", "-c", "echo logged; exit 3"], timeout_s=10, log=tmp_path / "log")
    with pytest.raises(CommandError, match="no such program"):
        subprocesses.run(["rollcall-absent"], timeout_s=10)


def test_a_program_that_hangs_is_killed_and_quoted() -> None:
    with pytest.raises(CommandError, match=r"not done after 0 s"):
        subprocesses.run(["sh", "-c", "echo begun; exec sleep 60"], timeout_s=0.3)


def test_a_wait_that_is_too_long_quotes_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("cannot bind")
    with pytest.raises(CommandError, match=r"etcd: not ready after 0 s\ncannot bind"):
        subprocesses.wait_for("etcd", lambda: False, timeout_s=0.0, log=log)
