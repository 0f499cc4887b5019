"""What the pods that enforce NetworkPolicies on the local cluster are made of."""

import ast
import sys
from typing import Any

from hack.cluster.network_policies import daemon_set

PACKAGE = "hack.cluster.network_policies"


def made(kind: str) -> dict[str, Any]:
    (found,) = (body for body in daemon_set.manifests() if body["kind"] == kind)
    return found


def imported(code: str) -> set[str]:
    """The modules that a file imports when it runs or is checked."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_their_code_needs_nothing_but_python_and_itself() -> None:
    code = made("ConfigMap")["data"]
    own = {f"{PACKAGE}.{name.removesuffix('.py')}" for name in code}
    for name, text in code.items():
        others = {m for m in imported(text) if m.partition(".")[0] not in sys.stdlib_module_names}
        assert others <= own, name


def test_files_lie_where_their_imports_look_for_them() -> None:
    spec = made("DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    items = spec["volumes"][0]["configMap"]["items"]
    assert {i["key"]: i["path"] for i in items} == {
        name: f"hack/cluster/network_policies/{name}" for name in made("ConfigMap")["data"]
    }
    assert container["command"][-1] == f"{PACKAGE}.enforcer"
    assert container["workingDir"] == container["volumeMounts"][0]["mountPath"]


def test_they_read_what_they_need_and_change_nothing() -> None:
    rules = made("ClusterRole")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "pods",
        "namespaces",
        "networkpolicies",
    }
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules)


def test_they_run_on_tainted_nodes_too_and_a_change_of_the_code_replaces_them() -> None:
    template = made("DaemonSet")["spec"]["template"]
    assert template["spec"]["hostNetwork"]
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert template["metadata"]["annotations"]["code"]
