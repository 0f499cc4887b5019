"""How package clients of this machine reach their registries, for other roots and images to do so.

It holds addresses and certificates of the machine's network: what it is written to stays here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from hack.cluster import debian_packages
from hack.cluster.subprocesses import run

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_VARIABLES = re.compile(
    r"(?i:https?_proxy|no_proxy|all_proxy)|UV_(DEFAULT_)?INDEX\w*|UV_NATIVE_TLS|SSL_CERT_FILE"
    r"|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO"
)
_GO_VARIABLES = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOINSECURE")
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


def files(suite: str) -> dict[str, str]:
    """Paths without the leading slash, and what to write there, in a root of Debian `suite`."""
    files = {
        "etc/apt/sources.list": "\n".join(debian_packages.sources(suite)) + "\n",
        "etc/apt/apt.conf.d/90machine": "\n".join(debian_packages.apt_options()) + "\n",
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


def environment() -> dict[str, str]:
    """Variables of this process that say how registries are reached, and Go's settings."""
    found = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    if shutil.which("go"):
        settings: dict[str, str] = json.loads(
            run(["go", "env", "-json", *_GO_VARIABLES], timeout_s=30)
        )
        found |= {name: value for name, value in settings.items() if value}
    else:
        found |= {name: os.environ[name] for name in _GO_VARIABLES if name in os.environ}
    return found
