"""`kubectl explain` on a real API server prints the fields of the golden files."""

import subprocess
from typing import TYPE_CHECKING

import pytest

from hack.cluster import go_build
from rollcall_operator.api.crd import RLJOB, ROLLOUTPOOL, CustomResource, crd
from tests.apiserver.cluster import Cluster
from tests.golden.explain import fields, type_of

if TYPE_CHECKING:
    from pathlib import Path


def explain(cluster: Cluster, *arguments: str) -> str:
    kubectl = go_build.programs(["kubectl"])["kubectl"]
    command: list[str | Path] = [kubectl, "--kubeconfig", str(cluster.admin), "explain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(text: str) -> list[tuple[int, str, str]]:
    """Depth, name and type of each field that `kubectl explain --recursive` lists."""
    listed = text.partition("FIELDS:\n")[2].splitlines()
    found = []
    for line in listed:
        if "\t<" in line:
            name, _, kind = line.partition("\t<")
            depth = (len(name) - len(name.lstrip())) // 2
            found.append((depth, name.strip(), kind.partition(">")[0]))
    return found


@pytest.mark.parametrize("resource", [RLJOB, ROLLOUTPOOL])
@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_and_no_other_is_explained(
    cluster: Cluster, resource: CustomResource, part: str
) -> None:
    schema = crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root = schema["properties"][part]
    wanted = {
        (path.removeprefix(f"{part}."), type_of(node)) for path, node in fields(root, part)
    } - {(part, "Object")}
    above: list[str] = []
    found = set()
    for depth, name, kind in explained(
        explain(cluster, f"{resource.plural}.{part}", "--recursive")
    ):
        above[depth - 1 :] = [name]
        path = ".".join(above)
        if "template." not in path:
            found.add((path, kind))
    assert found == wanted


def test_a_description_is_what_the_golden_file_says(cluster: Cluster) -> None:
    text = " ".join(explain(cluster, "rljob.status").split())
    assert "Observed state of the RLJob." in text
