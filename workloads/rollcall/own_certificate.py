"""The certificate of a coordinator without an operator: members believe it and no other."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollcall.errors import RollcallError
from rollcall_protocol.pod_contract import TLS_CERTIFICATE, TLS_KEY

if TYPE_CHECKING:
    from pathlib import Path

_EARLIER = dt.timedelta(hours=1)  # clocks of members may be behind
_VALID = dt.timedelta(days=3650)


def own_certificate(folder: Path, address: str) -> str:
    """The certificate (PEM) in `folder` for this IP address, signed by its own key; made if there
    is none, or one of another address. RollcallError if it cannot be read.
    """
    certificate, key = folder / TLS_CERTIFICATE, folder / TLS_KEY
    if certificate.exists() and key.exists():
        try:
            found = certificate.read_text(encoding="ascii")
            if _is_of(found, address):
                return found
        except (ValueError, x509.ExtensionNotFound) as error:
            raise RollcallError(f"{certificate}: {error}; take another folder") from error
    folder.mkdir(exist_ok=True, mode=0o700)
    made, private = _sign(address)
    key.touch(mode=0o600)
    key.write_text(private, encoding="ascii")
    certificate.write_text(made, encoding="ascii")
    return made


def _is_of(certificate: str, address: str) -> bool:
    names = x509.load_pem_x509_certificate(certificate.encode()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return ipaddress.ip_address(address) in names.value.get_values_for_type(x509.IPAddress)


def _sign(address: str) -> tuple[str, str]:
    """A certificate and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "rollcall")])
    begin = dt.datetime.now(dt.UTC) - _EARLIER
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + _VALID)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
