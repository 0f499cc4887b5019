"""What the files of a volume hold: the kubelet's part of ConfigMaps, Secrets, tokens and fields.

https://kubernetes.io/docs/concepts/storage/volumes/
"""

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rollcall_local.api_server.errors import MissingObjectError

Object = dict[str, Any]

TOKEN_RENEWED_AT = 0.8  # of its time, as by the kubelet
_PUBLIC, _SECRET = 0o644, 0o600  # modes of files that name none


class VolumeError(Exception):
    """A volume cannot be had; the message names it, and says what to do."""


@dataclass(slots=True)
class VolumeSources:
    """Where the content comes from.

    `read` takes ConfigMap or Secret and a name, and returns its data as bytes (MissingObjectError);
    `token` takes a serviceAccountToken source, and returns a token; `claims` is the folder of
    PersistentVolumeClaims; `fields` are those of the downward API.
    """

    read: Callable[[str, str], Mapping[str, bytes]]
    token: Callable[[Object], str]
    has_claim: Callable[[str], bool]
    claims: Path
    fields: Mapping[str, str]


class File(NamedTuple):
    """What a file of a volume holds, and who may read it."""

    content: bytes
    mode: int


@dataclass(slots=True)
class VolumeContent:
    """The files of one pod's volumes; it keeps the tokens that are still good."""

    sources: VolumeSources
    _tokens: dict[str, tuple[str, float]] = field(default_factory=dict)  # and when to renew each

    def files(self, volume: Object) -> dict[str, File]:
        """By path below the mount; VolumeError, MissingObjectError while what it names is away."""
        projected = volume.get("projected")
        if projected is None:
            return self._of_source(volume, volume["name"], None)
        files: dict[str, File] = {}
        for number, source in enumerate(projected.get("sources") or ()):
            key = f"{volume['name']}/{number}"
            files |= self._of_source(source, key, projected.get("defaultMode"))
        return files

    def _of_source(self, source: Object, key: str, mode: int | None) -> dict[str, File]:
        """The files of a volume, or of one source of several; `mode` is that of all of them."""
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            return {token["path"]: File(self._token(key, token).encode(), _SECRET)}
        if "configMap" in source:
            return self._of_keys("ConfigMap", source["configMap"], mode or _PUBLIC)
        if "secret" in source:
            return self._of_keys("Secret", source["secret"], mode or _SECRET)
        if "downwardAPI" in source:
            return self._of_fields(source["downwardAPI"], mode or _PUBLIC)
        return {}

    def _token(self, key: str, source: Object) -> str:
        token, renewed_at = self._tokens.get(key, ("", 0.0))
        now = time.time()
        if now >= renewed_at:
            token = self.sources.token(source)
            seconds = source.get("expirationSeconds", 3600)
            self._tokens[key] = token, now + TOKEN_RENEWED_AT * seconds
        return token

    def _of_keys(self, kind: str, source: Object, mode: int) -> dict[str, File]:
        name = _name(source)
        try:
            content = self.sources.read(kind, name)
        except MissingObjectError:
            if source.get("optional"):
                return {}
            raise
        mode = source.get("defaultMode") or mode
        if not source.get("items"):
            return {key: File(value, mode) for key, value in content.items()}
        files = {}
        for item in source["items"]:
            if item["key"] in content:
                files[item["path"]] = File(content[item["key"]], item.get("mode") or mode)
            elif not source.get("optional"):
                raise VolumeError(f"{kind} {name} has no key {item['key']}")
        return files

    def _of_fields(self, source: Object, mode: int) -> dict[str, File]:
        files = {}
        for item in source.get("items") or ():
            path = (item.get("fieldRef") or {}).get("fieldPath", "")
            if path not in self.sources.fields:
                raise VolumeError(f"downwardAPI: fieldPath {path!r} is not known here")
            files[item["path"]] = File(self.sources.fields[path].encode(), mode)
        return files


def names(volume: Object) -> set[tuple[str, str]]:
    """Kind and name of each ConfigMap and Secret that a volume has the content of."""
    found = set()
    for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
        if "configMap" in source:
            found.add(("ConfigMap", _name(source["configMap"])))
        if "secret" in source:
            found.add(("Secret", _name(source["secret"])))
    return found


def decoded(body: Object) -> dict[str, bytes]:
    """The content of a ConfigMap or Secret, by key."""
    if body["kind"] == "Secret":
        plain = {key: base64.b64decode(text) for key, text in (body.get("data") or {}).items()}
        more = {key: text.encode() for key, text in (body.get("stringData") or {}).items()}
        return plain | more
    binary = body.get("binaryData") or {}
    content = {key: text.encode() for key, text in (body.get("data") or {}).items()}
    return content | {key: base64.b64decode(text) for key, text in binary.items()}


def _name(source: Object) -> str:
    """A volume names a Secret by another field than a source of several does."""
    return str(source.get("secretName") or source["name"])
