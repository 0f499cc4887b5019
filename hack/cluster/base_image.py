"""The Debian base of the project's images, made on the spot where no registry hands it out.

It carries this machine's own ways to reach package archives, so images built on it stay here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, debian
from hack.cluster.shell import run, say

if TYPE_CHECKING:
    from hack.cluster.engine import Engine

STANDARD = "debian:trixie-slim"
SUITE = "trixie"
LABEL = "rollcall.local-base"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_KEYS = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
    "cert",
)


def ensure(engine: Engine) -> str:
    """The name of the base to build on: the standard one, or one of ours, made if absent."""
    if engine.pulls(STANDARD):
        return STANDARD
    root = debian.root_file_system(SUITE, ["ca-certificates"], name="base")
    files = _files()
    key = cache.digest(root.name, *(f"{path}\n{text}" for path, text in files.items()))
    name = f"rollcall.local/debian:{SUITE}-{key}"
    if engine.holds(name):
        return name
    plain = f"rollcall.local/debian-plain:{root.stem.rsplit('-', 1)[-1]}"
    if not engine.holds(plain):
        engine.docker("import", root, plain, timeout_s=300)
    with cache.scratch() as folder:
        for path, text in files.items():
            target = folder / "tree" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (folder / "Dockerfile").write_text(
            f'FROM {plain}\nCOPY tree/ /\nLABEL {LABEL}=1\nCMD ["bash"]\n'
        )
        engine.docker("build", "--quiet", "--tag", name, folder, timeout_s=300)
    say(f"base image: {name}, for this machine alone")
    return name


def _files() -> dict[str, str]:
    files = {
        "etc/apt/sources.list": "\n".join(debian.sources(SUITE)) + "\n",
        "etc/apt/apt.conf.d/90machine": "\n".join(debian.apt_options()) + "\n",
        "etc/pip.conf": pip_configuration(
            run([sys.executable, "-m", "pip", "config", "list"], timeout_s=60)
        ),
    }
    if CERTIFICATES.exists():
        # In both places: the second is what a later update-ca-certificates makes the first from.
        bundle = CERTIFICATES.read_text()
        files[str(CERTIFICATES).lstrip("/")] = bundle
        files["usr/local/share/ca-certificates/machine.crt"] = bundle
    return files


def pip_configuration(listed: str) -> str:
    """A pip.conf for an image, from what `pip config list` prints on the machine.

    Settings of the environment win over those of files, as they do for pip. The certificates are
    the machine's bundle, which the image has in the usual place.
    """
    found: dict[str, str] = {}
    lines = re.findall(r"^(global|:env:)\.([a-z-]+)='(.*)'$", listed, re.MULTILINE)
    for section in ("global", ":env:"):
        found |= {key: value for where, key, value in lines if where == section}
    found = {key: value for key, value in found.items() if key in _PIP_KEYS}
    if "cert" in found:
        found["cert"] = str(CERTIFICATES)
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in found.items())]) + "\n"
