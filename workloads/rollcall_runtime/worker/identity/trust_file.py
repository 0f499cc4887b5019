"""The mounted public keys by which tokens and servers are checked, followed when they change."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jwt

from rollcall_protocol.wire.json_codec import CodecError, decode
from rollcall_protocol.wire.trust_bundle import TrustBundle
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.reread_files import RereadFiles
from rollcall_runtime.worker.identity.tls import client_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from ssl import SSLContext

log = logging.getLogger(__name__)

LONGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Trust:
    """A TrustBundle ready for use: keys by key id, a context that believes its authorities."""

    issuer: str
    operator: str
    keys: Mapping[str, jwt.PyJWK]
    client: SSLContext


class TrustFile:
    """A TrustBundle in a file, read again when the file changes.

    SpecError if the file cannot be read at the start.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._path = path
        try:
            self._files = RereadFiles((path,), self._read, clock=clock)
        except (OSError, ValueError) as error:
            problem = f"{error}; does the job's ConfigMap hold the operator's trust bundle?"
            raise SpecError(str(path), problem) from error

    def current(self) -> Trust:
        """The content, at most LOOK_SECONDS old."""
        return self._files.current()

    def client_context(self) -> SSLContext:
        """The context for a connection to a server of the job."""
        return self.current().client

    def _read(self) -> Trust:
        size = self._path.stat().st_size
        if size > LONGEST_FILE:
            raise ValueError(f"{size} bytes; at most {LONGEST_FILE} are read")
        return _parse(self._path.read_bytes())


def _parse(text: bytes) -> Trust:
    """ValueError says what is wrong."""
    try:
        bundle = decode(TrustBundle, json.loads(text))
    except CodecError as error:
        raise ValueError(str(error)) from error
    keys = {}
    for key in bundle.keys:
        try:
            keys[str(key["kid"])] = jwt.PyJWK(key)
        except (jwt.PyJWTError, KeyError, ValueError) as error:
            log.warning("left out a key of the cluster: %s: %s", type(error).__name__, error)
    if not keys:
        raise ValueError("no key of the bundle can be used")
    client = client_context(bundle.authorities)
    return Trust(bundle.issuer, bundle.operator, keys, client)
