"""A job without an operator: the trainer's process says which rollouts belong to it.

Names, members and the key that signs their tokens lie in a folder, which a trainer that is started
again reads. Tokens are those that Kubernetes gives its pods, by this key; see docs/protocol.md.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from rollcall.errors import RollcallError
from rollcall.own_certificate import own_certificate
from rollcall.own_job_settings import NAMESPACE, OwnJobSettings
from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import EngineRef, PoolConfig
from rollcall_protocol.wire.json_codec import decode, encode
from rollcall_protocol.wire.roster import RosterMember
from rollcall_protocol.wire.trust_bundle import TrustBundle
from rollcall_runtime.coordinator.atomic_json import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

POOL = "own"
TOKEN_SECONDS = 30 * 86400.0  # `admit` again gives a new one
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RECORD, _KEY, _TLS = "job.json", "key.pem", "tls"


@dataclass(frozen=True, slots=True)
class OwnJobRecord:
    """What the folder remembers; the uids are random."""

    uid: str
    trainer_uid: str
    members: tuple[RosterMember, ...] = ()
    port: int = 0  # the coordinator's, once it has listened


class OwnJob:
    """Opened by one trainer at a time. RollcallError says what is wrong with the folder."""

    def __init__(self, folder: Path, settings: OwnJobSettings) -> None:
        """Read the folder, or make it."""
        self._folder, self._settings = folder, settings
        _check_address("address", settings.address)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = self._open_key(folder / _KEY)
        self._record = self._open_record(folder / _RECORD)
        self._certificate = own_certificate(folder / _TLS, settings.address)

    @property
    def members(self) -> tuple[RosterMember, ...]:
        """Those that were admitted and not removed."""
        return self._record.members

    def trainer(self) -> dict[str, str]:
        """The variables of the trainer's process."""
        name = pod_contract.trainer_pod(NAMESPACE, 0)
        address, port = self._settings.address, self._settings.port or self._record.port
        variables = self._variables(name, self._record.trainer_uid, address, port)
        return {**variables, pod_contract.TLS_DIR: str(self._folder / _TLS)}

    def listens_at(self, port: int) -> None:
        """Keep the coordinator's port, for rollouts and for a trainer that starts again."""
        if port != self._record.port:
            self._record = replace(self._record, port=port)
            write_json(self._folder / _RECORD, self._record)

    def admit(
        self, name: str, address: str, *, engine: str, config: Mapping[str, Any]
    ) -> dict[str, str]:
        """The variables of a rollout's process; the same member if it was admitted before."""
        if not _NAME.fullmatch(name) or name.startswith(f"{NAMESPACE}-"):
            raise RollcallError(
                f"admit: name {name!r} is none; take small letters, digits and dashes, at most 63, "
                f"and none that begins with {NAMESPACE}-"
            )
        _check_address("admit: address", address)
        known = {member.pod: member for member in self.members}
        found = known.get(name)
        if found is not None and found.address != address:
            raise RollcallError(
                f"admit: {name} is at {found.address} already; remove it before it moves"
            )
        if found is None:
            found = RosterMember(str(uuid.uuid4()), name, address, POOL)
            self._remember((*self.members, found))
        pool = PoolConfig(
            pool=POOL,
            sync_group=found.group,
            engine=EngineRef(engine, dict(config)),
            drain_timeout=30.0,
        )
        variables = self._variables(name, found.pod_uid, address, self._record.port)
        return {**variables, pod_contract.POOL_CONFIG: json.dumps(encode(pool))}

    def remove(self, name: str) -> None:
        """RollcallError if it was not admitted."""
        left = tuple(member for member in self.members if member.pod != name)
        if len(left) == len(self.members):
            raise RollcallError(f"remove: {name} was not admitted")
        self._remember(left)
        shutil.rmtree(self._folder / name, ignore_errors=True)

    # --- inside --------------------------------------------------------------------------------

    def _variables(self, name: str, pod_uid: str, address: str, port: int) -> dict[str, str]:
        folder = self._folder / name
        state = folder / "state"
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / pod_contract.TOKEN_FILE).write_text(self._token(name, pod_uid))
        (folder / pod_contract.TRUST_FILE).write_text(json.dumps(encode(self._trust())))
        return {
            pod_contract.CONFIG: json.dumps(encode(self._settings.config(self._record.uid))),
            pod_contract.COORDINATOR: self._settings.address,
            pod_contract.COORDINATOR_PORT: str(port),
            pod_contract.POD_NAME: name,
            pod_contract.POD_UID: pod_uid,
            pod_contract.POD_IP: address,
            pod_contract.TOKEN_DIR: str(folder),
            pod_contract.TRUST_DIR: str(folder),
            pod_contract.STATE_DIR: str(state),
            pod_contract.LOCAL: "1",  # no image says by its torch which device there must be
        }

    def _token(self, name: str, pod_uid: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self._record.uid,
            "sub": f"{self._record.uid}/{name}",
            "aud": pod_contract.audience(self._record.uid),
            "iat": now,
            "nbf": now,
            "exp": now + int(TOKEN_SECONDS),
            "kubernetes.io": {"namespace": NAMESPACE, "pod": {"name": name, "uid": pod_uid}},
        }
        headers = {"kid": self._record.uid}
        return jwt.encode(claims, self._key, "ES256", headers=headers)

    def _trust(self) -> TrustBundle:
        key = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        named = {**key, "kid": self._record.uid, "use": "sig", "alg": "ES256"}
        # Nobody has the operator's subject: no token is signed for it.
        operator = f"{self._record.uid}/operator"
        return TrustBundle(self._record.uid, operator, (named,), self._certificate)

    def _open_key(self, path: Path) -> ec.EllipticCurvePrivateKey:
        if path.exists():
            try:
                found = serialization.load_pem_private_key(path.read_bytes(), password=None)
            except ValueError as error:
                raise RollcallError(f"{path}: {error}; take another folder") from error
            if not isinstance(found, ec.EllipticCurvePrivateKey):
                raise RollcallError(f"{path}: no key of this library; take another folder")
            return found
        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.touch(mode=0o600)
        path.write_bytes(text)
        return key

    def _open_record(self, path: Path) -> OwnJobRecord:
        if not path.exists():
            record = OwnJobRecord(str(uuid.uuid4()), str(uuid.uuid4()))
            write_json(path, record)
            return record
        try:
            return decode(OwnJobRecord, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise RollcallError(f"{path}: {error}; take another folder") from error

    def _remember(self, members: tuple[RosterMember, ...]) -> None:
        self._record = replace(self._record, members=members)
        write_json(self._folder / _RECORD, self._record)


def _check_address(what: str, address: str) -> None:
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise RollcallError(
            f"{what} {address!r} is no IP address; give the machine's own"
        ) from error
