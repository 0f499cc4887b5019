"""TLS of the doors that tokens go through: this pod's certificate, and whose are believed."""

from __future__ import annotations

import logging
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollcall_protocol.pod_contract import TLS_CERTIFICATE, TLS_KEY
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

# asyncio keeps a buffer of this size for each TLS connection; its own 256 KiB are much where
# strangers have hundreds. A record of TLS has 16 KiB at most.
SSLProtocol.max_size = 32 << 10

LOOK_SECONDS = 1.0  # at most once in so long the files are looked at

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

    What cannot be used later is logged, and the former certificate is shown. SpecError if the files
    cannot be used at the start.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._certificate, self._key = folder / TLS_CERTIFICATE, folder / TLS_KEY
        self._clock, self._looked = clock, clock()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self._seen = self._signature()
            self._load()
        except OSError as error:
            problem = f"{error}; does the Secret hold a certificate and the key that belongs to it?"
            raise SpecError(str(folder), problem) from error

    def context(self) -> ssl.SSLContext:
        """The context for a connection that was accepted now."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._context

    def _look(self) -> None:
        try:
            seen = self._signature()
            if seen == self._seen:
                return
            self._seen = seen
            self._load()
            log.info("read the certificate %s again", self._certificate)
        except OSError as error:
            log.warning("cannot use %s, the former one holds: %s", self._certificate, error)

    def _load(self) -> None:
        # Without a password OpenSSL would ask for one at the terminal.
        self._context.load_cert_chain(self._certificate, self._key, password="")

    def _signature(self) -> tuple[tuple[int, int, int], ...]:
        found = (self._certificate.stat(), self._key.stat())
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
