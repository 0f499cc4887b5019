"""A service that answers each request in one hostile way, as a process of its own.

    python -m hack.attacks.hostile_service HOW [--to ADDRESS]

It prints its port. HOW is one of ANSWERS; a redirect leads to ADDRESS. It takes the part of a
coordinator (the operator's stream) and of a rollout (its endpoints) alike.
"""

from __future__ import annotations

import argparse
import socketserver
import sys
import zlib
from typing import TYPE_CHECKING

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

POD_UID = "uid-of-the-hostile-pod"
MIB = 1 << 20
LONG_REPORT_BYTES = 13 * MIB
_PACKED_NEWLINES = 4 << 30  # 4 MiB once they are compressed
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
    for step in range(10**9):
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


class _Handler(socketserver.StreamRequestHandler):
    """Answers one request as `how` says; what is sent lasts until the client leaves."""

    how = ""
    to = ""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        try:
            if self.how == REDIRECT:
                head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {self.to}\r\n"
                self.wfile.write(f"{head}Content-Length: 0\r\n\r\n".encode())
                return
            packed = "Content-Encoding: gzip\r\n" if self.how == COMPRESSED else ""
            head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-ndjson\r\n"
            self.wfile.write(f"{head}{packed}\r\n".encode())
            for part in BODIES[self.how](POD_UID):
                self.wfile.write(part)
        except ConnectionError:
            return


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


def main() -> int:
    """Serve until the process is ended. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=ANSWERS)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--to", default="")
    options = parser.parse_args()
    _Handler.how, _Handler.to = options.how, options.to
    with _Server((options.host, 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
