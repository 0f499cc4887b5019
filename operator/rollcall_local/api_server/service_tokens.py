"""Tokens of service accounts and pods, as a cluster issues them, by a key of this machine.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/
"""

import time
import uuid
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from rollcall_local.api_server.errors import MalformedRequestError
from rollcall_local.api_server.whole_file import write_whole
from rollcall_operator.plan.timestamps import to_time

Object = dict[str, Any]

ISSUER = "https://rollcall.local"
_KEY_ID = "local"
_SHORTEST, _LONGEST = 600, 86_400  # seconds that a token is valid


class ServiceTokens:
    """Signs tokens with the key in a file, which it makes at the first start."""

    def __init__(self, key_file: Path) -> None:
        """OSError; ValueError that names a file which is no key."""
        self._key = _read(key_file) if key_file.exists() else _make(key_file)

    def keys(self) -> Object:
        """The JSON Web Key Set by which workers check tokens."""
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": _KEY_ID, "use": "sig", "alg": "ES256"}]}

    def issue(self, *, namespace: str, account: str, account_uid: str, spec: Object) -> Object:
        """The status of a TokenRequest of this `spec`; MalformedRequestError."""
        audiences, seconds = spec.get("audiences") or [ISSUER], spec.get("expirationSeconds", 3600)
        if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
            raise MalformedRequestError("spec.audiences: must be a list of strings")
        if type(seconds) is not int or not _SHORTEST <= seconds <= _LONGEST:
            raise MalformedRequestError(
                f"spec.expirationSeconds: {seconds!r} is not from {_SHORTEST} to {_LONGEST}"
            )
        named: Object = {
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": account_uid},
        }
        bound = spec.get("boundObjectRef")
        if bound:
            if not isinstance(bound, dict) or not bound.get("name") or not bound.get("uid"):
                raise MalformedRequestError(
                    "spec.boundObjectRef: name and uid of a pod are required"
                )
            named["pod"] = {"name": bound["name"], "uid": bound["uid"]}
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{account}",
            "aud": audiences,
            "jti": str(uuid.uuid4()),
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "kubernetes.io": named,
        }
        token = jwt.encode(claims, self._key, "ES256", headers={"kid": _KEY_ID})
        return {"token": token, "expirationTimestamp": to_time(now + seconds)}


def _make(file: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_whole(file, text)
    return key


def _read(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: not a key of this program; delete it: {error}") from error
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key
    raise ValueError(f"{file}: not a key of this program; delete it")
