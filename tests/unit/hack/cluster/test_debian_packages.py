"""Which archives a machine's apt configuration leads to."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from hack.cluster import debian_packages
from hack.cluster.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://elsewhere.test/node
Suites: nodistro
Components: main
Enabled: no
"""

ONE_LINE = """\
# deb http://mirror.test/debian bookworm main
deb [arch=amd64 signed-by=/keys/debian.gpg] http://mirror.test/debian bookworm main # the archive
deb http://mirror.test/debian-security bookworm-security main contrib
deb-src http://mirror.test/debian bookworm main
deb https://packages.test/cloud cloud-sdk-bookworm main
"""


def test_deb822_stanzas_become_sources() -> None:
    archive, security = debian_packages.parse_deb822(DEB822)
    assert archive.uri == "http://mirror.test/debian"
    assert archive.suites == ("bookworm", "bookworm-updates")
    assert archive.options == ("signed-by=/usr/share/keyrings/debian-archive-keyring.gpg",)
    assert security.uri == "http://mirror.test/debian-security"


def test_a_key_inside_a_stanza_is_left_to_apts_own_keyrings() -> None:
    inline = DEB822.replace(
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        ("Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF"),
    )
    assert debian_packages.parse_deb822(inline)[0].options == ()


def test_one_line_sources_keep_the_options_that_other_releases_need() -> None:
    sources = debian_packages.parse_one_line(ONE_LINE)
    assert [source.uri for source in sources] == [
        "http://mirror.test/debian",
        "http://mirror.test/debian-security",
        "https://packages.test/cloud",
    ]
    assert sources[0].options == ("signed-by=/keys/debian.gpg",)
    assert sources[0].components == ("main",)


def test_another_release_comes_from_the_same_mirrors_and_pockets() -> None:
    sources = debian_packages.parse_deb822(DEB822) + debian_packages.parse_one_line(ONE_LINE)
    keyring = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
    assert debian_packages.retarget(sources, host="bookworm", suite="trixie") == [
        f"deb [{keyring}] http://mirror.test/debian trixie main",
        f"deb [{keyring}] http://mirror.test/debian trixie-updates main",
        "deb http://mirror.test/debian-security trixie-security main",
        "deb [signed-by=/keys/debian.gpg] http://mirror.test/debian trixie main",
    ]


def test_archives_of_others_are_left_out() -> None:
    others = debian_packages.parse_one_line(
        "deb https://packages.test/cloud cloud-sdk-bookworm main"
    )
    assert debian_packages.retarget(others, host="bookworm", suite="trixie") == []


def test_on_a_system_other_than_debian_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debian_packages, "host_release", lambda: ("ubuntu", "noble"))
    with pytest.raises(ClusterError, match="use Debian 12 or newer, or a Docker"):
        debian_packages.sources("trixie")


def test_mmdebstrap_of_the_cache_finds_the_programs_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs mmtarfilter by name, and the machine may have neither of them."""
    monkeypatch.setenv("ROLLCALL_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian_packages, "sources", lambda _: [])
    monkeypatch.setattr(debian_packages, "apt_options", list)
    monkeypatch.setattr(debian_packages, "architecture", lambda: "amd64")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: path and name)
    folder = tmp_path / "host-tools" / "mmdebstrap" / "usr" / "bin"
    folder.mkdir(parents=True)
    for name, line in (
        ("mmdebstrap", 'shift 6; exec mmtarfilter "$1"'),
        ("mmtarfilter", 'touch "$1"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    assert debian_packages.root_file_system("bookworm", [], name="any").exists()
