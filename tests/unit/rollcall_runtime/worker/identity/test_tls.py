"""A server's certificate is read again when it changes; what cannot be used changes nothing."""

import logging
import ssl
from pathlib import Path

import pytest
import trustme

from rollcall_protocol.pod_contract import TLS_CERTIFICATE, TLS_KEY
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.identity.reread_files import LOOK_SECONDS
from rollcall_runtime.worker.identity.tls import ServerCertificate, client_context
from tests.certificates import certificate_of, show


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def believes(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "host") -> bool:
    """Whether a handshake in memory succeeds."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            for end in (ours, theirs):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError:
        return False
    return True


def test_it_is_read_again_when_it_changes(tmp_path: Path) -> None:
    first, second, clock = trustme.CA(), trustme.CA(), Clock()
    server = ServerCertificate(show(tmp_path, "host", signed_by=first), clock=clock)
    assert believes(client_context(certificate_of(first)), server.context())
    show(tmp_path, "host", signed_by=second)
    clock.now += LOOK_SECONDS
    assert believes(client_context(certificate_of(second)), server.context())
    assert not believes(client_context(certificate_of(first)), server.context())


@pytest.mark.parametrize("name", [TLS_CERTIFICATE, TLS_KEY])
@pytest.mark.parametrize("change", ["unlink", "write"])
def test_what_cannot_be_used_leaves_the_former_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, change: str
) -> None:
    authority, clock = trustme.CA(), Clock()
    server = ServerCertificate(show(tmp_path, "host", signed_by=authority), clock=clock)
    caplog.set_level(logging.WARNING)
    if change == "unlink":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text("no PEM")
    clock.now += LOOK_SECONDS
    assert believes(client_context(certificate_of(authority)), server.context())
    assert "the former content holds" in caplog.text


def test_a_worker_does_not_start_without_a_certificate_and_the_key_that_belongs_to_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SpecError, match="No such file"):
        ServerCertificate(tmp_path)
    show(tmp_path, "host")
    key = (tmp_path / TLS_KEY).read_bytes()
    show(tmp_path, "host")
    (tmp_path / TLS_KEY).write_bytes(key)
    with pytest.raises(SpecError, match="does the Secret hold a certificate and the key"):
        ServerCertificate(tmp_path)


def test_authorities_that_cannot_be_read_are_an_error_and_none_believes_no_server(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        client_context("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    server = ServerCertificate(show(tmp_path, "host")).context()
    assert not believes(client_context(""), server)


def test_nothing_older_than_tls_1_3_is_spoken(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = ServerCertificate(show(tmp_path, "host", signed_by=authority)).context()
    old = client_context(certificate_of(authority))
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not believes(old, server)
