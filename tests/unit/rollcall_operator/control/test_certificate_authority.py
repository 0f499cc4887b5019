"""The operator's authority is made once, kept in a Secret, and signs for one name each."""

import asyncio
import base64
import datetime as dt
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trustme

from rollcall_operator.control import certificate_authority
from rollcall_operator.control.certificate_authority import (
    CertificateAuthority,
    wait_for_authority,
)
from rollcall_operator.kube.errors import ConflictError, RefusedError
from rollcall_runtime.worker.identity.tls import ServerCertificate, client_context

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

HOST = "reverse-trainer-0.reverse-trainer.team.svc"
FOREIGN = trustme.CA()
BAD = {
    "nothing": ({}, "it has no tls.crt"),
    "another kind of key": (
        {
            "tls.crt": base64.b64encode(FOREIGN.cert_pem.bytes()).decode(),
            "tls.key": CertificateAuthority.new().secret_data["tls.key"],
        },
        "do not belong together",
    ),
    "no PEM": ({"tls.crt": "AAAA", "tls.key": "AAAA"}, ""),
}


class Cluster:
    """Stands in for the client: has one Secret, or refuses."""

    def __init__(self, *refusals: Exception) -> None:
        self.secret: dict[str, Any] | None = None
        self.refusals = list(refusals)

    async def find(self, *_: Any, **__: Any) -> dict[str, Any] | None:
        if self.refusals:
            raise self.refusals.pop(0)
        return self.secret

    async def create(self, _: Any, body: dict[str, Any]) -> None:
        if self.secret is not None:
            raise ConflictError(status=409, reason="AlreadyExists", message="", what="create")
        self.secret = body


async def load(cluster: Cluster, reports: list[str]) -> CertificateAuthority:
    async with asyncio.timeout(5):
        return await wait_for_authority(
            cast("KubeClient", cluster), namespace="s", name="a", report=reports.append
        )


async def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Connect; ssl.SSLError if the client does not believe the server."""
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=host
        )
        writer.close()


def mounted(folder: Path, data: dict[str, str]) -> ServerCertificate:
    for name, content in data.items():
        (folder / name).write_bytes(base64.b64decode(content))
    return ServerCertificate(folder)


async def test_clients_that_have_the_authority_believe_a_server_of_that_name_and_no_other(
    tmp_path: Path,
) -> None:
    authority = CertificateAuthority.new()
    server = mounted(tmp_path, authority.issue(HOST)).context()
    await handshake(server, client_context(authority.certificate), HOST)
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        await handshake(server, client_context(authority.certificate), "other" + HOST)
    for bundle in (CertificateAuthority.new().certificate, ""):
        with pytest.raises(ssl.SSLError, match="certificate verify failed"):
            await handshake(server, client_context(bundle), HOST)


async def test_a_certificate_of_a_job_signs_no_other(tmp_path: Path) -> None:
    authority = CertificateAuthority.new()
    stolen = authority.issue(HOST)
    own = CertificateAuthority.new()
    forger = CertificateAuthority(
        CertificateAuthority.read(authority.secret_data)._certificate, own._key
    )
    server_data = forger.issue("other")
    server_data["tls.crt"] = base64.b64encode(
        base64.b64decode(server_data["tls.crt"]) + base64.b64decode(stolen["tls.crt"])
    ).decode()
    server = mounted(tmp_path, server_data).context()
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        await handshake(server, client_context(authority.certificate), "other")


async def test_it_is_made_once_and_read_again() -> None:
    cluster, reports = Cluster(), list[str]()
    made = await load(cluster, reports)
    assert cluster.secret is not None
    assert cluster.secret["type"] == "kubernetes.io/tls"
    assert (await load(cluster, reports)).certificate == made.certificate
    assert reports == []


async def test_what_keeps_it_from_the_operator_is_reported_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificate_authority, "_RETRY_SECONDS", 0.01)
    refused = RefusedError(status=403, reason="Forbidden", message="may not", what="get")
    cluster, reports = Cluster(refused, refused), list[str]()
    await load(cluster, reports)
    assert len(reports) == 1, "the same problem once"
    assert "cannot read or make the Secret s/a: get: 403 Forbidden: may not" in reports[0]


@pytest.mark.parametrize(("data", "problem"), BAD.values(), ids=BAD)
async def test_a_secret_that_holds_none_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    data: dict[str, str],
    problem: str,
) -> None:
    monkeypatch.setattr(certificate_authority, "_RETRY_SECONDS", 0.01)
    cluster, reports = Cluster(), list[str]()
    cluster.secret = {"data": data}
    caplog.set_level(logging.WARNING)
    waiting = asyncio.create_task(load(cluster, reports))
    await asyncio.sleep(0.1)
    assert len(reports) == 1
    assert "Secret s/a holds no authority that can be used" in reports[0]
    assert problem in reports[0]
    assert "delete it" in reports[0]
    cluster.secret = None
    await waiting


def test_an_authority_that_has_expired_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_authority, "_YEARS", 0)
    with pytest.raises(ValueError, match="has expired"):
        CertificateAuthority.read(CertificateAuthority.new().secret_data)


def test_certificates_hold_as_long_as_the_authority_and_on_clocks_that_are_behind() -> None:
    authority = CertificateAuthority.new()
    begin = authority._certificate.not_valid_before_utc
    assert dt.datetime.now(dt.UTC) - begin >= dt.timedelta(hours=23)
