"""A service that answers each request in a hostile way, as a process of its own.

    python -m hack.attacks.hostile_service HOW [--host ADDRESS] [--port PORT] [--to ADDRESS]

It prints its port. HOW is one of ANSWERS, or "each" for the next one with each request; a redirect
leads to ADDRESS. It takes the part of a coordinator (the operator's stream) and of a rollout (its
endpoints) alike. In a pod with a certificate it speaks TLS. Beyond Python it needs
`rollcall_protocol` alone, which each worker image has.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socketserver
import ssl
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import (
    JobSnapshot,
    MemberReport,
    MemberState,
    TrainingProgress,
)
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.messages import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POD_UID = os.environ.get(pod_contract.POD_UID, "uid-of-the-hostile-pod")
MIB = 1 << 20
LONG_REPORT_BYTES = 13 * MIB
_PACKED_NEWLINES = 4 << 30  # 4 MiB once they are compressed
# A reader that takes them at its own pace is held for a minute, then the next way has its turn.
_MANY_REPORTS = 1200
_MEMBER = MemberReport("uid", "rollout", "pool", MemberState.IN_SYNC, 1)


def _report(pod_uid: str, members: int, step: int) -> bytes:
    progress = TrainingProgress(step, 10**6, step, None)
    report = JobSnapshot(pod_uid, 1, 0, "", (_MEMBER,) * members, progress)
    return dumps(report).encode() + b"\n"


def _newlines(_: str) -> Iterator[bytes]:
    while True:
        yield b"\n" * MIB


def _packed(_pod_uid: str) -> Iterator[bytes]:
    packer = zlib.compressobj(9, wbits=31)
    for _ in range(_PACKED_NEWLINES >> 20):
        yield packer.compress(b"\n" * MIB)
    yield packer.flush()


def _long_reports(pod_uid: str) -> Iterator[bytes]:
    members = LONG_REPORT_BYTES // len(to_json(_MEMBER))
    for step in range(10**6):
        yield _report(pod_uid, members, step)


def _many_reports(pod_uid: str) -> Iterator[bytes]:
    for step in range(_MANY_REPORTS):
        yield _report(pod_uid, 50, step)


def _endless_line(_: str) -> Iterator[bytes]:
    while True:
        yield b"x" * MIB


COMPRESSED = "compressed_newlines"
# Each takes the uid of the pod that answers.
BODIES: dict[str, Callable[[str], Iterator[bytes]]] = {
    "newlines": _newlines,
    COMPRESSED: _packed,
    "long_reports": _long_reports,
    "many_reports": _many_reports,
    "endless_line": _endless_line,
}
REDIRECT = "redirect"
ANSWERS = (*BODIES, REDIRECT)
EACH = "each"


class _Handler(socketserver.StreamRequestHandler):
    """Answers one request in the next of `ways`; what is sent lasts until the client leaves."""

    ways: Iterator[str] = iter(())
    to = ""

    def handle(self) -> None:
        try:
            while self.rfile.readline().strip():
                pass
            self._answer(next(self.ways))
        except OSError:  # the client has left, or no TLS came
            return

    def _answer(self, how: str) -> None:
        if how == REDIRECT:
            head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {self.to}\r\n"
            self.wfile.write(f"{head}Content-Length: 0\r\n\r\n".encode())
            return
        packed = "Content-Encoding: gzip\r\n" if how == COMPRESSED else ""
        head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\n"
        self.wfile.write(f"{head}{packed}\r\n".encode())
        for part in BODIES[how](POD_UID):
            self.wfile.write(part)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    certificate: ssl.SSLContext | None = None

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self.certificate is not None:  # the handshake is the thread's
            connection = self.certificate.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address


def _certificate() -> ssl.SSLContext | None:
    folder = os.environ.get(pod_contract.TLS_DIR)
    if not folder:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        Path(folder) / pod_contract.TLS_CERTIFICATE, Path(folder) / pod_contract.TLS_KEY
    )
    return context


def main() -> int:
    """Serve until the process is ended. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=(*ANSWERS, EACH))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--to", default="")
    options = parser.parse_args()
    _Handler.to = options.to
    _Handler.ways = itertools.cycle(ANSWERS if options.how == EACH else (options.how,))
    _Server.certificate = _certificate()
    with _Server((options.host, options.port), _Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
