"""Images: written by hand, thinned on their way, named as the nodes name them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, ClassVar

import pytest

from hack.cluster import base_image, image_archive, image_load, images, package_clients
from hack.cluster.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

BIG = bytes(2 << 20)


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as read:
        found = {
            member.name: read.extractfile(member) if member.isreg() else None for member in read
        }
        return {name: stream.read() if stream else b"" for name, stream in found.items()}


def saved(path: Path, names: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as written:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("rollcall/operator:dev", "docker.io/rollcall/operator:dev"),
        ("registry.test/team/operator:v1", "registry.test/team/operator:v1"),
        ("localhost:5000/operator", "localhost:5000/operator:latest"),
    ],
)
def test_nodes_know_images_by_full_names(short: str, full: str) -> None:
    assert image_load.qualified(short) == full


def test_layers_that_a_node_has_do_not_travel(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "image.tar",
        {
            "oci-layout": b"{}",
            "index.json": b"{}",
            "blobs/sha256/old": BIG,
            "blobs/sha256/new": BIG[1:],
            "blobs/sha256/config": b"{}",
        },
    )
    target = io.BytesIO()
    sent = image_load.thin(path, target, present={"sha256:old", "sha256:config"})
    assert set(members(target.getvalue())) == {
        "oci-layout",
        "index.json",
        "blobs/sha256/new",
        "blobs/sha256/config",
    }
    assert len(BIG) <= sent < 2 * len(BIG)


def test_images_without_a_name_are_dropped_from_a_node() -> None:
    listing = """\
REF                               TYPE                 DIGEST     SIZE    PLATFORMS   LABELS
docker.io/rollcall/worker-cpu:dev application/vnd.oci  sha256:new 2.5 GiB linux/amd64 a=b
docker.io/library/busybox:latest  application/vnd.oci  sha256:box 2.1 MiB linux/amd64 -
sha256:config-of-the-new-one      application/vnd.oci  sha256:new 2.5 GiB linux/amd64 a=b
sha256:config-of-the-old-one      application/vnd.oci  sha256:old 2.5 GiB linux/amd64 a=b
"""
    assert image_load.replaced_images(listing) == ["sha256:config-of-the-old-one"]
    assert image_load.replaced_images("") == []


def test_an_archive_of_the_older_layout_travels_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "image.tar", {"manifest.json": b"[]", "blobs/sha256/old": BIG})
    target = io.BytesIO()
    image_load.thin(path, target, present={"sha256:old"})
    assert set(members(target.getvalue())) == {"manifest.json", "blobs/sha256/old"}


def test_a_written_image_has_its_layers_and_their_digests(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(b"#!/bin/sh\n")
    target = tmp_path / "image.tar"
    image_archive.write_image(
        target,
        names=["registry.test/tool:v1"],
        layers=[
            image_archive.Layer(files={"usr/bin/tool": tool}, links={"bin/sh": "/usr/bin/tool"})
        ],
        architecture="amd64",
        entrypoint=["/usr/bin/tool"],
    )
    found = members(target.read_bytes())
    manifest = json.loads(found["manifest.json"])[0]
    config = json.loads(found[manifest["Config"]])
    layer = found[manifest["Layers"][0]]
    assert manifest["RepoTags"] == ["registry.test/tool:v1"]
    assert config["config"]["Entrypoint"] == ["/usr/bin/tool"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert members(layer)["usr/bin/tool"] == b"#!/bin/sh\n"
    assert list(members(layer)) == ["usr", "usr/bin", "bin", "usr/bin/tool", "bin/sh"]


def test_parts_of_a_root_file_system_can_be_left_out(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.tar", {"./dev/null": b"", "./bin/sh": b"x", "./etc/apt/s": b"x"})
    image_archive.without(source, tmp_path / "b.tar", dropped=["dev/", "etc/apt/"])
    assert set(members((tmp_path / "b.tar").read_bytes())) == {"./bin/sh"}


def test_pips_configuration_of_the_machine_goes_into_the_base() -> None:
    listed = (
        ":env:.default-timeout='180'\n:env:.find-links='/srv/wheels'\n"
        "global.cert='/srv/bundle.pem'\nglobal.index-url='https://packages.test/simple'\n"
        ":env:.index-url='https://nearer.test/simple'\ninstall.user='true'\n"
    )
    assert package_clients.pip_configuration(listed) == (
        "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"
        "index-url = https://nearer.test/simple\ndefault-timeout = 180\n"
    )


def test_an_unknown_image_is_named_with_those_known() -> None:
    with pytest.raises(ClusterError, match=r"no image 'worker'.*operator.*worker-cpu"):
        images.build(["worker"])


class Recorder:
    """An engine that builds nothing: it keeps what was asked of it."""

    env: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.built: list[list[str]] = []

    def docker(self, *_: str) -> str:
        return ""

    def build_options(self) -> list[str]:
        return []

    def run(self, argv: list[str | Path], **_: object) -> None:
        self.built.append([str(word) for word in argv])


@pytest.mark.parametrize(
    ("name", "dockerfile", "on_debian"),
    [
        ("worker-cpu", "images/worker-cpu/Dockerfile", True),
        ("worker-engines", "tests/images/worker-engines/Dockerfile", True),
        ("worker-cuda", "images/worker-cuda/Dockerfile", True),
        ("worker-ascend", "images/worker-ascend/Dockerfile", False),
    ],
)
def test_an_image_on_debian_is_built_on_the_base_that_is_there(
    monkeypatch: pytest.MonkeyPatch, name: str, dockerfile: str, *, on_debian: bool
) -> None:
    engine = Recorder()
    monkeypatch.setattr(images, "engine", lambda: engine)
    monkeypatch.setattr(images, "run", engine.run)
    monkeypatch.setattr(base_image, "ensure", lambda _: "made.here/debian")
    assert images.build([name], tag="v1") == [f"rollcall/{name}:v1"]
    (words,) = engine.built
    assert str(images.REPOSITORY_ROOT / dockerfile) in words
    assert ("BASE=made.here/debian" in words) is on_debian


def test_images_cannot_be_loaded_into_the_cluster_of_a_given_kubeconfig(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLCALL_USE_KUBECONFIG", "1")
    with pytest.raises(ClusterError, match="push them to a registry"):
        images.load(["rollcall/operator:dev"])
