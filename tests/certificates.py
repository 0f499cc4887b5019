"""Certificates of servers as a Secret holds them, signed by an authority of the tests."""

import datetime as dt
import functools
import json
from pathlib import Path

import trustme

from rollcall_protocol import pod_contract


@functools.cache
def authority() -> trustme.CA:
    """The one that jobs of this process believe."""
    return trustme.CA()


def certificate_of(ca: trustme.CA) -> str:
    """The authority's own certificate, PEM."""
    return ca.cert_pem.bytes().decode()


def show(
    folder: Path,
    *hosts: str,
    signed_by: trustme.CA | None = None,
    until: dt.datetime | None = None,
) -> Path:
    """Write the certificate and key of a server of these names, as a Secret is mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    issued = (signed_by or authority()).issue_cert(*hosts, not_after=until)
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    for name, text in (
        (pod_contract.TLS_CERTIFICATE, chain),
        (pod_contract.TLS_KEY, issued.private_key_pem.bytes()),
    ):
        draft = folder / f"{name}.draft"
        draft.write_bytes(text)
        draft.replace(folder / name)
    return folder


def believe(folder: Path, *authorities: trustme.CA) -> None:
    """Have the mounted trust bundle name these authorities."""
    path = folder / pod_contract.TRUST_FILE
    bundle = json.loads(path.read_text())
    bundle["authorities"] = "".join(map(certificate_of, authorities))
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(bundle))
    draft.replace(path)
