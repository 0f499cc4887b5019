"""The operator's own authority, which signs the certificates of jobs' servers."""

import asyncio
import base64
import datetime as dt
import ipaddress
import logging
from collections.abc import Callable
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollcall_operator.api import labels
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_operator.kube.resources import SECRETS

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"
_YEARS = 10
"""How long certificates hold: longer than any job, as those of jobs are not renewed."""
_RETRY_SECONDS = 2.0
_EARLIER = dt.timedelta(days=1)
"""Clocks of nodes may be wrong by so much."""


class CertificateAuthority:
    """A key and its certificate. Signs for ten years, or as long as it holds itself."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def new(cls) -> "CertificateAuthority":
        """Another one, of a new key (ECDSA, P-256)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rollcall-operator")])
        begin = dt.datetime.now(dt.UTC) - _EARLIER
        built = (
            _builder(name, name, key, begin, begin + dt.timedelta(days=365 * _YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(built, key)

    @classmethod
    def read(cls, data: Object) -> "CertificateAuthority":
        """From the data of a Secret; ValueError if it holds none, or one that has expired."""
        try:
            certificate = x509.load_pem_x509_certificate(base64.b64decode(data[CERTIFICATE]))
            key = serialization.load_pem_private_key(base64.b64decode(data[KEY]), password=None)
        except KeyError as error:
            raise ValueError(f"it has no {error.args[0]}") from error
        except TypeError as error:  # the key has a password
            raise ValueError(str(error)) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{KEY} is no key of an elliptic curve")  # noqa: TRY004 - not a bug
        if certificate.public_key() != key.public_key():
            raise ValueError(f"{CERTIFICATE} and {KEY} do not belong together")
        if certificate.not_valid_after_utc <= dt.datetime.now(dt.UTC):
            raise ValueError(f"{CERTIFICATE} has expired")
        return cls(certificate, key)

    @cached_property
    def certificate(self) -> str:
        """What others verify by, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def secret_data(self) -> Object:
        """The data of a Secret of type kubernetes.io/tls from which `read` makes the same."""
        return _secret_data(self.certificate, self._key)

    def issue(self, host: str) -> Object:
        """The data of a Secret of type kubernetes.io/tls for a server of this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "rollcall")])
        own, begin = self._certificate, dt.datetime.now(dt.UTC) - _EARLIER
        signed = (
            _builder(name, own.subject, key, begin, own.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        chain = signed.public_bytes(serialization.Encoding.PEM).decode() + self.certificate
        return _secret_data(chain, key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


async def wait_for_authority(
    client: KubeClient, *, namespace: str, name: str, report: Callable[[str], None]
) -> CertificateAuthority:
    """The authority in the Secret `name`, which is made if there is none.

    Tries without end; `report` gets each new problem.
    """
    reported = ""
    while True:
        try:
            return await _load(client, namespace=namespace, name=name)
        except (ApiError, UnreachableError) as error:
            problem = f"cannot read or make the Secret {namespace}/{name}: {error}"
        except ValueError as error:
            problem = (
                f"Secret {namespace}/{name} holds no authority that can be used ({error}); delete "
                "it, and the operator makes another"
            )
        if problem != reported:
            log.warning("Waiting for the authority of jobs' certificates: %s", problem)
            report(problem)
            reported = problem
        await asyncio.sleep(_RETRY_SECONDS)


async def _load(client: KubeClient, *, namespace: str, name: str) -> CertificateAuthority:
    found = await client.find(SECRETS, namespace=namespace, name=name)
    if found is not None:
        return CertificateAuthority.read(found.get("data") or {})
    made = CertificateAuthority.new()
    await client.create(SECRETS, tls_secret(namespace=namespace, name=name, data=made.secret_data))
    log.info("Made the authority of jobs' certificates: Secret %s/%s", namespace, name)
    return made


def tls_secret(
    *, namespace: str, name: str, data: Object, owners: list[Object] | None = None
) -> Object:
    """The manifest of a Secret of type kubernetes.io/tls."""
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "labels": {labels.NAME: "rollcall", labels.MANAGED_BY: labels.FIELD_MANAGER},
    }
    if owners:
        metadata["ownerReferences"] = owners
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "kubernetes.io/tls",
        "data": data,
    }


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _secret_data(certificates: str, key: ec.EllipticCurvePrivateKey) -> Object:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        CERTIFICATE: base64.b64encode(certificates.encode()).decode(),
        KEY: base64.b64encode(private).decode(),
    }
