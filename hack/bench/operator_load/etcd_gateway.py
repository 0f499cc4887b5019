"""Requests to etcd by its JSON gateway, whose keys and values are Base64.

https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

Pair = dict[str, str]
"""`key` and `value`, both in Base64."""


async def ask(session: aiohttp.ClientSession, call: str, body: object) -> Any:
    """The answer to `call` of the key-value service: range, put or txn.

    Raises:
        aiohttp.ClientError: etcd refused it, or cannot be reached.
    """
    async with session.post(f"/v3/kv/{call}", json=body) as response:
        response.raise_for_status()
        return await response.json()


async def stored(session: aiohttp.ClientSession, key: bytes, end: bytes = b"") -> list[Pair]:
    """What is stored under `key`, or from it up to `end`. Raises as `ask` does."""
    asked = {"key": _text(key), **({"range_end": _text(end)} if end else {})}
    found = (await ask(session, "range", asked)).get("kvs", [])
    return [{"key": pair["key"], "value": pair["value"]} for pair in found]


def encoded(key: bytes, value: bytes) -> Pair:
    """As etcd takes them."""
    return {"key": _text(key), "value": _text(value)}


def decoded(pair: Pair) -> tuple[bytes, bytes]:
    """Key and value as bytes, from the base64 texts of the gateway's JSON."""
    return base64.b64decode(pair["key"]), base64.b64decode(pair["value"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
