"""Tokens are those that workers and coordinators believe, by the keys that the server tells."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from rollcall_local.api_server.errors import MalformedRequestError
from rollcall_local.api_server.service_tokens import ISSUER, ServiceTokens
from rollcall_runtime.worker.identity.token_verifier import (
    TokenRefusal,
    TokenRefusedError,
    TokenVerifier,
)
from rollcall_runtime.worker.identity.trust_file import TrustFile

OPERATOR = "system:serviceaccount:rollcall-system:rollcall-operator"
POD = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "uid-p"}


def verifier(folder: Path, tokens: ServiceTokens, *, audience: str = "job") -> TokenVerifier:
    file = folder / "trust.json"
    file.write_text(json.dumps({"issuer": ISSUER, "operator": OPERATOR, **tokens.keys()}))
    return TokenVerifier(TrustFile(file), audience=audience, namespace="ns")


def issue(tokens: ServiceTokens, **spec: Any) -> dict[str, Any]:
    whole = {"audiences": ["job"], "boundObjectRef": POD, **spec}
    return tokens.issue(namespace="ns", account="default", account_uid="uid-a", spec=whole)


def test_a_pods_token_proves_who_it_is(tmp_path: Path) -> None:
    tokens = ServiceTokens(tmp_path / "key.pem")
    identity = verifier(tmp_path, tokens).verify(issue(tokens)["token"])
    assert (identity.namespace, identity.pod, identity.pod_uid) == ("ns", "p", "uid-p")
    assert not identity.is_operator


def test_the_operators_token_proves_that_it_is_the_operator(tmp_path: Path) -> None:
    tokens = ServiceTokens(tmp_path / "key.pem")
    issued = tokens.issue(
        namespace="rollcall-system",
        account="rollcall-operator",
        account_uid="u",
        spec={"audiences": ["job"]},
    )
    assert verifier(tmp_path, tokens).verify(issued["token"]).is_operator


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"audiences": ["another job"]}, TokenRefusal.WRONG_AUDIENCE),
        ({"boundObjectRef": None}, TokenRefusal.NO_POD),
    ],
)
def test_a_token_for_something_else_proves_nothing(
    tmp_path: Path, spec: dict[str, Any], reason: TokenRefusal
) -> None:
    tokens = ServiceTokens(tmp_path / "key.pem")
    with pytest.raises(TokenRefusedError) as refused:
        verifier(tmp_path, tokens).verify(issue(tokens, **spec)["token"])
    assert refused.value.reason == reason


def test_a_token_of_another_machine_proves_nothing(tmp_path: Path) -> None:
    ours, theirs = ServiceTokens(tmp_path / "ours.pem"), ServiceTokens(tmp_path / "theirs.pem")
    with pytest.raises(TokenRefusedError) as refused:
        verifier(tmp_path, ours).verify(issue(theirs)["token"])
    assert refused.value.reason == TokenRefusal.BAD_SIGNATURE


def test_a_token_is_believed_after_a_restart(tmp_path: Path) -> None:
    token = issue(ServiceTokens(tmp_path / "key.pem"))["token"]
    verifier(tmp_path, ServiceTokens(tmp_path / "key.pem")).verify(token)


def test_a_token_ends_when_it_says(tmp_path: Path) -> None:
    issued = issue(ServiceTokens(tmp_path / "key.pem"), expirationSeconds=600)
    claims = jwt.decode(issued["token"], options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 600
    assert abs(claims["iat"] - time.time()) < 5
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(claims["exp"]))
    assert issued["expirationTimestamp"] == ends


def test_without_an_audience_it_is_for_the_server_itself(tmp_path: Path) -> None:
    issued = issue(ServiceTokens(tmp_path / "key.pem"), audiences=[])
    assert jwt.decode(issued["token"], options={"verify_signature": False})["aud"] == [ISSUER]


def test_the_served_key_cannot_sign(tmp_path: Path) -> None:
    (key,) = ServiceTokens(tmp_path / "key.pem").keys()["keys"]
    assert (key["kty"], key["alg"], key["use"]) == ("EC", "ES256", "sig")
    assert "d" not in key


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"audiences": "job"}, "spec.audiences: must be a list of strings"),
        ({"audiences": [5]}, "spec.audiences"),
        ({"expirationSeconds": 599}, "spec.expirationSeconds: 599 is not from 600 to 86400"),
        ({"expirationSeconds": 86_401}, "spec.expirationSeconds"),
        ({"expirationSeconds": True}, "spec.expirationSeconds"),
        ({"expirationSeconds": "600"}, "spec.expirationSeconds"),
        ({"boundObjectRef": {"name": "p"}}, "spec.boundObjectRef: name and uid"),
        ({"boundObjectRef": "p"}, "spec.boundObjectRef"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(MalformedRequestError, match=message):
        issue(ServiceTokens(tmp_path / "key.pem"), **spec)


def test_others_cannot_read_the_key(tmp_path: Path) -> None:
    ServiceTokens(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "no key", "rsa"])
def test_a_damaged_key_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key.pem"
    file.write_text(_rsa() if content == "rsa" else content)
    with pytest.raises(ValueError, match=f"{file}: not a key of this program; delete it"):
        ServiceTokens(file)


def _rsa() -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    text = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return text.decode()
