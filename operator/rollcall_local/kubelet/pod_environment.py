"""What a container is started with: its command and environment, with folders for mount paths.

Processes of one machine share its file system. So a mount path is replaced by the volume's folder
wherever it stands in the command, the arguments and the values of variables, also inside of the
JSON that the operator writes.

https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall_local.api_server.errors import MissingObjectError
from rollcall_local.kubelet import host_names
from rollcall_protocol import pod_contract

Object = dict[str, Any]
ReadContent = Callable[[str, str], Mapping[str, str]]
"""Takes ConfigMap or Secret, and a name; returns its data. MissingObjectError."""

SHARED = frozenset({"/tmp", "/dev/shm"})  # noqa: S108 - paths of the machine, which stay
_SITE = Path(__file__).parent / "site"
_INHERITED = ("PATH", "HOME", "USER", "LANG", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_INHERITED_PREFIXES = ("LC_", "HF_", "NVIDIA_")
# A name is all that stands before the next ")".
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_BEFORE = r"(?:(?<![\w./~*?%$})\]-])|(?<=file://))"  # neither within a path nor after a variable
_AFTER = r"(?![\w.-])"
_MEETING_PLACES = {"MASTER_ADDR", "PET_MASTER_ADDR"}
_POD_HOST = re.compile(r"(?P<pod>[^.]+)\.[^.]+\.(?P<namespace>[^.]+)\.svc(\.cluster\.local)?\.?")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


class UnsupportedValueError(ValueError):
    """A variable comes from a source that is not supported here; the message names it."""


def environment(
    own: Mapping[str, str],
    mounts: Mapping[str, Path],
    *,
    python: Path,
    hosts_file: Path,
    gpus: Sequence[str],
) -> dict[str, str]:
    """All variables of a container: its `own`, and what it needs of this machine.

    `python` is that of its environment, `hosts_file` has the addresses of pods, and `gpus` are
    those that it was given.
    """
    values = inherited()
    for name, value in own.items():
        values[name] = with_folders(value, mounts)
    values["PATH"] = f"{python.parent}{os.pathsep}{values.get('PATH', os.defpath)}"
    # Its own modules come before those that this process was started with.
    modules = (str(_SITE), values.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    values["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, modules)))
    values[pod_contract.LOCAL] = "1"
    values[host_names.HOSTS] = str(hosts_file)
    temporary = mounts.get("/tmp")  # noqa: S108 - the path of the mount
    if temporary is not None:
        values.setdefault("TMPDIR", str(temporary))
    values.setdefault("CUDA_VISIBLE_DEVICES", ",".join(gpus))
    return values


def inherited() -> dict[str, str]:
    """What containers get of this process's own environment: where programs, caches and proxies
    of this machine are.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES) or name.lower() in _PROXIES
    }


def variables(container: Object, fields: Mapping[str, str], read: ReadContent) -> dict[str, str]:
    """The container's own variables; `fields` are what a fieldRef may name.

    MissingObjectError while a ConfigMap or Secret is away; UnsupportedValueError.
    """
    values: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        kind, reference = _reference(source, {"configMapRef": "ConfigMap", "secretRef": "Secret"})
        for name, value in _content(kind, reference, read).items():
            values[source.get("prefix", "") + name] = value
    for variable in container.get("env") or ():
        name, source = variable["name"], variable.get("valueFrom")
        if source is None:
            values[name] = expanded(variable.get("value") or "", values)
            continue
        found = _of_source(name, source, fields, read)
        if found is not None:
            values[name] = found
    return values


def with_addresses(
    values: Mapping[str, str], address_of: Callable[[str, str], str]
) -> dict[str, str]:
    """`values` with the pod's address for its DNS name where torchrun and accelerate meet: torch
    looks that up in C++, which sees the machine's own names alone. `address_of` takes namespace and
    pod.
    """
    found = dict(values)
    for name in _MEETING_PLACES & found.keys():
        host = _POD_HOST.fullmatch(found[name])
        if host is not None:
            found[name] = address_of(host["namespace"], host["pod"])
    return found


def _of_source(
    name: str, source: Object, fields: Mapping[str, str], read: ReadContent
) -> str | None:
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        if path not in fields:
            raise UnsupportedValueError(f"env {name}: fieldPath {path} is not known here")
        return fields[path]
    kinds = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
    if not kinds.keys() & source.keys():
        raise UnsupportedValueError(f"env {name}: valueFrom.{next(iter(source))} is not known here")
    kind, reference = _reference(source, kinds)
    found = _content(kind, reference, read).get(reference["key"])
    if found is None and not reference.get("optional"):
        raise UnsupportedValueError(
            f"env {name}: {kind} {reference['name']} has no key {reference['key']}"
        )
    return found


def _reference(source: Object, kinds: Mapping[str, str]) -> tuple[str, Object]:
    field = next(field for field in kinds if field in source)
    return kinds[field], source[field]


def _content(kind: str, reference: Object, read: ReadContent) -> Mapping[str, str]:
    try:
        return read(kind, reference["name"])
    except MissingObjectError:
        if reference.get("optional"):
            return {}
        raise


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the value of a variable before it, `$$` a dollar sign; what is not known
    stays.
    """
    return _REFERENCE.sub(
        lambda found: "$" if found[0] == "$$" else values.get(found[1], found[0]), text
    )


def with_folders(text: str, folders: Mapping[str, Path]) -> str:
    """`text` with the folder of each mount path in its place, that of the longest path."""
    paths = sorted(folders.keys() - SHARED, key=len, reverse=True)
    if not paths:
        return text
    either = "|".join(map(re.escape, paths))
    return re.sub(f"{_BEFORE}(?:{either}){_AFTER}", lambda found: str(folders[found[0]]), text)


def command(container: Object, values: Mapping[str, str], folders: Mapping[str, Path]) -> list[str]:
    """The command with its arguments; an image has none of its own here."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [with_folders(expanded(word, values), folders) for word in words]
