"""TLS of the endpoints that tokens go through: this pod's certificate, and whose are believed."""

from __future__ import annotations

import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollcall_protocol.pod_contract import TLS_CERTIFICATE, TLS_KEY
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.reread_files import RereadFiles

if TYPE_CHECKING:
    from pathlib import Path

# asyncio keeps a buffer of this size for each TLS connection; its own 256 KiB are much where
# unauthenticated clients have hundreds. A record of TLS has 16 KiB at most.
SSLProtocol.max_size = 32 << 10

TlsContext = Callable[[], ssl.SSLContext]
"""Gives the context for a new connection."""


def client_context(authorities: str) -> ssl.SSLContext:
    """Believes servers whose certificate one of `authorities` (PEM) signed for the name that was
    called, and no others. ValueError if they cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if authorities:
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise ValueError(f"the certificates of authorities cannot be read: {error}") from error
    return context


class ServerCertificate:
    """The mounted certificate and key (PEM) of this pod, read again when the files change.

    SpecError if the files cannot be used at the start.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._certificate, self._key = folder / TLS_CERTIFICATE, folder / TLS_KEY
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self._files = RereadFiles((self._certificate, self._key), self._load, clock=clock)
        except OSError as error:
            problem = f"{error}; does the Secret hold a certificate and the key that belongs to it?"
            raise SpecError(str(folder), problem) from error

    def context(self) -> ssl.SSLContext:
        """The context for a connection that was accepted now."""
        return self._files.current()

    def _load(self) -> ssl.SSLContext:
        # Without a password OpenSSL would ask for one at the terminal.
        self._context.load_cert_chain(self._certificate, self._key, password="")
        return self._context
