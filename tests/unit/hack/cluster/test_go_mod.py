"""The scratch modules that tools are built in."""

from __future__ import annotations

import pytest

from hack.cluster import go_build, go_recipes
from hack.cluster.errors import ClusterError

GO_MOD = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
)

replace example.com/broken => example.com/fixed v1.2.3

replace go.etcd.io/etcd/api/v3 => ../api
"""


def module() -> list[str]:
    text = go_build.scratch_module(
        "kubernetes", module="k8s.io/kubernetes", version="v1.36.3", go_mod=GO_MOD
    )
    return [line for line in text.splitlines() if line]


def test_it_requires_the_tool_in_its_language_and_settings() -> None:
    assert module()[:4] == [
        "module rollcall.local/kubernetes",
        "go 1.26.0",
        "godebug default=go1.26",
        "require k8s.io/kubernetes v1.36.3",
    ]


def test_staging_folders_become_the_same_releases_modules() -> None:
    assert "replace k8s.io/api => k8s.io/api v0.36.3" in module()
    assert "replace k8s.io/client-go => k8s.io/client-go v0.36.3" in module()


def test_versioned_replacements_stay_and_other_folders_go() -> None:
    assert "replace example.com/broken => example.com/fixed v1.2.3" in module()
    assert not any("etcd" in line or "./" in line for line in module())


def test_a_program_of_our_own_requires_nothing() -> None:
    text = go_build.scratch_module("pause", module="", version="v1", go_mod="go 1.26.0\n")
    assert "require" not in text


def test_every_program_has_one_recipe() -> None:
    assert len(go_build.known()) == len(set(go_build.known()))


def test_an_unknown_program_is_named_with_those_known() -> None:
    with pytest.raises(ClusterError, match=r"no program 'kubeclt'.*kubectl"):
        go_build.program("kubeclt")


def test_another_release_of_kubernetes_may_be_asked_for() -> None:
    assert go_recipes.kubernetes_version("v1.37.2") == "v1.37.2"
    assert go_recipes.kubernetes_version("") == go_recipes.PINNED_KUBERNETES


@pytest.mark.parametrize("asked", ["1.37.2", "v1.37", "latest", "v1.37.2 "])
def test_what_is_no_release_of_kubernetes_is_refused(asked: str) -> None:
    with pytest.raises(ClusterError, match=r"ROLLCALL_KUBERNETES: .* is no release; give one such"):
        go_recipes.kubernetes_version(asked)
