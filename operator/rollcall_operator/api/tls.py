"""TLS between the pods of a job, and between them and the operator."""

from typing import Annotated, ClassVar

from pydantic import Field

from rollcall_operator.api.rules import Model, Rule

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


class TlsSpec(Model):
    """TLS for the connections that tokens go through: to the coordinator and to reference pods."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be given together with secretName: the certificates of those who signed "
            "the one in the Secret",
            cel="has(self.caBundle) == has(self.secretName)",
            holds=lambda tls: (tls.ca_bundle is None) == (tls.secret_name is None),
            path=".caBundle",
        ),
        Rule(
            message="must hold certificates (PEM)",
            cel=f"!has(self.caBundle) || self.caBundle.contains('{_CERTIFICATE}')",
            holds=lambda tls: tls.ca_bundle is None or _CERTIFICATE in tls.ca_bundle,
            path=".caBundle",
        ),
    )

    enabled: bool = True
    """true: the coordinator and the reference pods show a certificate, and nothing is sent to
    them without TLS. Weights are never sent by TLS. false: no TLS."""
    secret_name: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    """A Secret of type kubernetes.io/tls for the trainer's and the reference's pods, such as
    cert-manager writes it. Unset: the operator makes a Secret for each, signed by its own
    authority."""
    ca_bundle: Annotated[str | None, Field(min_length=1, max_length=65_536)] = None
    """Certificates (PEM) of the authorities that signed the certificate in the Secret."""
