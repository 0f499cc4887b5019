"""Service-account tokens as an API server issues them, by a key made once in a process."""

import functools
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from rollcall_protocol import pod_contract

ISSUER = "https://kubernetes.default.svc.cluster.local"
OPERATOR = "system:serviceaccount:rollcall-system:rollcall-operator"


@dataclass(frozen=True)
class SigningKey:
    """A key of the API server; `kid` names it in tokens."""

    kid: str
    private: Any
    algorithm: str = "RS256"

    @property
    def jwk(self) -> dict[str, Any]:
        kind = RSAAlgorithm if self.algorithm == "RS256" else ECAlgorithm
        public = kind.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.kid, "use": "sig", "alg": self.algorithm}


def rsa_key(kid: str) -> SigningKey:
    return SigningKey(kid, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def ec_key(kid: str) -> SigningKey:
    return SigningKey(kid, ec.generate_private_key(ec.SECP256R1()), "ES256")


@functools.cache
def default_key() -> SigningKey:
    return rsa_key("key-1")


@dataclass
class TokenIssuer:
    """The API server of one test, with the `operator` that its jobs trust."""

    issuer: str = ISSUER
    operator: str = OPERATOR
    key: SigningKey = field(default_factory=default_key)

    def trust(self, *keys: SigningKey) -> str:
        """A TrustBundle as JSON; of the key that signs unless `keys` are given."""
        jwks = [key.jwk for key in keys or (self.key,)]
        return json.dumps({"issuer": self.issuer, "operator": self.operator, "keys": jwks})

    def pod_token(
        self,
        *,
        job_uid: str,
        pod: str,
        pod_uid: str,
        namespace: str = "default",
        audience: str = "",
        seconds: float = 3600,
        **changes: Any,
    ) -> str:
        """The token of a pod for the coordinator of a job; `changes` are of its claims."""
        named = {
            "namespace": namespace,
            "node": {"name": "node-1", "uid": "uid-node"},
            "pod": {"name": pod, "uid": pod_uid},
            "serviceaccount": {"name": "default", "uid": "uid-account"},
        }
        claims = {
            "sub": f"system:serviceaccount:{namespace}:default",
            "aud": [audience or pod_contract.audience(job_uid)],
            "kubernetes.io": named,
        }
        return self.sign({**claims, **changes}, seconds=seconds)

    def operator_token(self, *, job_uid: str, seconds: float = 3600) -> str:
        """A token of the operator, which runs outside of the cluster, for a job's coordinator."""
        namespace, name = self.operator.split(":")[2:]
        named = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": "uid-operator"},
        }
        audience = [pod_contract.audience(job_uid)]
        claims = {"sub": self.operator, "aud": audience, "kubernetes.io": named}
        return self.sign(claims, seconds=seconds)

    def sign(self, claims: Mapping[str, Any], *, seconds: float) -> str:
        """A token that expires in `seconds`; a claim of None is left out."""
        now = time.time()
        times = {"iat": int(now), "nbf": int(now), "exp": int(now + seconds)}
        body = {"iss": self.issuer, "jti": str(uuid.uuid4()), **times, **claims}
        kept = {name: value for name, value in body.items() if value is not None}
        headers = {"kid": self.key.kid}
        return jwt.encode(kept, self.key.private, self.key.algorithm, headers=headers)

    def mount(
        self, folder: Path, *, job_uid: str, pod: str, pod_uid: str, namespace: str = "default"
    ) -> dict[str, str]:
        """Write what a pod mounts into a folder; the variables that say where it is."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, audience in (
            (pod_contract.TOKEN_FILE, pod_contract.audience(job_uid)),
            (pod_contract.REFERENCE_TOKEN_FILE, pod_contract.reference_audience(job_uid)),
        ):
            token = self.pod_token(
                job_uid=job_uid,
                pod=pod,
                pod_uid=pod_uid,
                namespace=namespace,
                audience=audience,
            )
            (folder / name).write_text(token)
        (folder / pod_contract.TRUST_FILE).write_text(self.trust())
        return {pod_contract.TOKEN_DIR: str(folder), pod_contract.TRUST_DIR: str(folder)}
