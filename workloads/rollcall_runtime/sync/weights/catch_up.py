"""A newcomer downloads one whole version over HTTP from a member that holds it.

The body is the manifest's length (8 bytes, big-endian), the manifest as JSON, and the flat buffer.
No other member takes part, so training and the sync group continue meanwhile.
"""

import asyncio
import json
import logging
import re
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest

import aiohttp
from aiohttp import web

from rollcall_protocol.membership.member_table import MAX_NEWCOMERS
from rollcall_protocol.pod_contract import TICKET_HEADER, WEIGHTS_ROUTE
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest, combine_manifests
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.errors import CatchUpError, DigestMismatchError, SyncError
from rollcall_runtime.sync.memory.buffers import Buffer, FlatBuffer
from rollcall_runtime.sync.weights.shards import (
    BucketSelection,
    Shard,
    batches,
    parse_bucket_ranges,
    select,
)
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.worker.auth import RouteHandler
from rollcall_runtime.worker.http_client import plain_session

_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20
SHARD_HEADER = "Rollcall-Shard"
_VERSION = re.compile(r"(\d+)@(\d+)\.(\d+)")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchTimeouts:
    """How long a newcomer stays with one donor. Times are seconds."""

    connect: float = 2.0
    stall: float = 5.0  # without a byte
    total: float = 60.0  # a donor's whole answer


def parse_version(text: str) -> Version:
    """Read what `str(version)` wrote; raises ValueError."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a version (number@epoch.boot)")
    number, epoch, boot = (int(part) for part in match.groups())
    return Version(Lineage(epoch, boot), number)


def weights_handler(
    held: Callable[[Version], WeightSnapshot | None],
    *,
    transfers: int = MAX_NEWCOMERS,
    stall: float = 10.0,
    total: float = 120.0,
    shard: str = "",
) -> RouteHandler:
    """The handler of GET WEIGHTS_ROUTE?version=...; for the agent and for the coordinator.

    The answer is the manifest's length, the manifest, and the buckets; or some, which `buckets`
    names ("0-3,7", the last included; or none, for the manifest alone). `shard` is what is held if
    that is not everything: sent only to requests for the same shard, and named in a header.

    `held` gives the snapshot of a version, or None; it is called on the event loop's thread.
    The caller must guard it by tickets. 400 for a bad version or bad buckets, 404
    when `version` is not held, or not whole, 503 beyond `transfers` at a time. A reader that takes
    nothing for `stall` seconds or is not done after `total` is disconnected: it holds the buffer.
    """
    active = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal active
        try:
            version = parse_version(request.query.get("version", ""))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        if active >= transfers:
            return web.Response(status=503, text=f"{active} transfers are under way")
        if shard and request.query.get("shard") != shard:
            return web.Response(status=404, text=f"holds shard {shard} only")
        snapshot = held(version)
        if snapshot is None:
            return web.Response(status=404, text=f"does not hold {version}")
        try:
            buckets = parse_bucket_ranges(request.query.get("buckets"), snapshot.manifest)
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        snapshot = snapshot.share()
        active += 1
        try:
            return await _send(request, snapshot, buckets, shard, stall=stall, total=total)
        finally:
            active -= 1
            snapshot.release()

    return handle


async def _send(
    request: web.Request,
    snapshot: WeightSnapshot,
    ranges: Sequence[tuple[int, int]],
    shard: str,
    *,
    stall: float,
    total: float,
) -> web.StreamResponse:
    buffer = snapshot.buffer
    manifest = _encoded(snapshot.manifest)
    response = web.StreamResponse(
        headers={"Content-Type": "application/octet-stream", SHARD_HEADER: shard}
    )
    nbytes = sum(end - start for start, end in ranges)
    response.content_length = _LENGTH.size + len(manifest) + nbytes
    await response.prepare(request)
    given, began = 0, time.monotonic()
    try:
        async with asyncio.timeout(total):
            await response.write(_LENGTH.pack(len(manifest)) + manifest)
            scratch = buffer.scratch(_CHUNK_BYTES)
            for first, end in ranges:
                for start in range(first, end, _CHUNK_BYTES):
                    # A copy: the transport may keep what it was given after the hold is gone.
                    stop = min(start + _CHUNK_BYTES, end)
                    chunk = bytes(await _read(buffer, start, stop, scratch))
                    async with asyncio.timeout(stall):
                        await response.write(chunk)
                    given += len(chunk)
            await response.write_eof()
    except TimeoutError:
        log.warning(
            "disconnected %s: it read weights too slowly (limits: %g s idle, %g s in all)",
            request.remote,
            stall,
            total,
        )
        if request.transport is not None:
            request.transport.abort()  # closing would wait for the reader
    except ConnectionError as error:
        log.info("%s disconnected while it read weights: %s", request.remote, error)
    finally:
        seconds = time.monotonic() - began
        log.info("gave %d bytes of weights to %s in %.2f s", given, request.remote, seconds)
    return response


async def _read(buffer: FlatBuffer, start: int, end: int, scratch: memoryview) -> memoryview:
    if buffer.device == "cpu":
        return buffer.read(start, end)
    return await asyncio.to_thread(buffer.read, start, end, scratch)


async def fetch(
    *,
    version: Version,
    manifest: WeightManifest,
    donors: Sequence[str],
    tickets: Sequence[str],
    stage: StagingArea,
    limits: FetchTimeouts | None = None,
    shard: Shard | None = None,
) -> tuple[str, ...]:
    """Stage `version`, or what `shard` needs of it, from the first of `donors` that gives that.

    `manifest` is the trainer's: what a donor sends is compared with it, and a donor that sends
    something else is passed over; these are returned. It has BLAKE3 digests, since a donor could
    make up bytes of a given checksum. A donor is host:port, or several joined by
    "+", each of which holds a part; its ticket is of the same form. Raises CatchUpError with each
    donor's reason. What is served does not change; commit afterwards.
    """
    if manifest.check is not BucketCheck.BLAKE3:
        raise CatchUpError(f"{version} has no digests by which to check what a donor sends")
    bounds = limits or FetchTimeouts()
    limit = _manifest_limit(manifest)
    timeout = aiohttp.ClientTimeout(
        total=bounds.total, sock_connect=bounds.connect, sock_read=bounds.stall
    )
    reasons: list[str] = []
    wrong: list[str] = []
    async with plain_session(
        timeout=timeout,
        read_bufsize=_CHUNK_BYTES,
    ) as client:
        for donor, ticket in zip_longest(donors, tickets, fillvalue=""):
            hosts = dict(zip_longest(donor.split("+"), ticket.split("+"), fillvalue=""))
            try:
                if shard is None:
                    await _fetch_from(client, hosts, version, manifest, limit, stage)
                else:
                    await _fetch_shard(client, hosts, version, manifest, limit, stage, shard)
            except (aiohttp.ClientError, TimeoutError, CodecError, ValueError, SyncError) as error:
                reasons.append(f"{donor}: {str(error) or type(error).__name__}")
                if isinstance(error, DigestMismatchError):
                    log.warning("%s has other weights than the trainer's %s", donor, version)
                    wrong.append(donor)
            else:
                return tuple(wrong)
    raise CatchUpError(
        f"no donor gave version {version}: {'; '.join(reasons) or 'no donor was named'}",
        wrong_donors=tuple(wrong),
    )


async def _fetch_from(
    client: aiohttp.ClientSession,
    hosts: Mapping[str, str],
    version: Version,
    whole: WeightManifest,
    limit: int,
    stage: StagingArea,
) -> None:
    """Read all hosts' manifests, then all their parts at once.

    `hosts` are those with tickets, `limit` the bytes that a manifest may have.
    """
    async with AsyncExitStack() as answers:
        streams = [
            (await answers.enter_async_context(_ask(client, host, ticket, version))).content
            for host, ticket in hosts.items()
        ]
        try:
            parts = [await _read_manifest(stream, limit) for stream in streams]
            _compare(parts[0] if len(parts) == 1 else combine_manifests(parts), whole)
            parts = _parts_of(whole, len(parts))
            # No wait for a buffer: this is an event loop's thread.
            with stage.staging(version, whole, timeout=0) as buffer:
                starts = accumulate((part.total_bytes for part in parts), initial=0)
                async with asyncio.TaskGroup() as group:
                    for stream, part, start in zip(streams, parts, starts, strict=False):
                        window = buffer.window(start, start + part.total_bytes)
                        group.create_task(_read_buffer(stream, part, window))
        except asyncio.IncompleteReadError as error:
            raise _cut_off(error) from error
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors


async def _fetch_shard(
    client: aiohttp.ClientSession,
    hosts: Mapping[str, str],
    version: Version,
    whole: WeightManifest,
    limit: int,
    stage: StagingArea,
    shard: Shard,
) -> None:
    """Read all hosts' manifests, then what is needed of their parts, all at once.

    `hosts` are those with tickets, `limit` the bytes that a manifest may have.
    """
    query = {"shard": shard.key}
    try:
        parts, same = [], False
        for host, ticket in hosts.items():
            async with _ask(client, host, ticket, version, **query, buckets="") as answer:
                parts.append(await _read_manifest(answer.content, limit))
                same = answer.headers.get(SHARD_HEADER) == shard.key
        taken = select(whole, shard)
        held = parts[0] if len(parts) == 1 else combine_manifests(parts)
        believed = taken.manifest if same else whole
        _compare(held, believed)
        if same:  # the donor numbers the buckets of its shard
            taken = BucketSelection(believed, tuple(range(len(believed.digests))))
        each = taken.manifest.bounds() if len(parts) > 1 else [(0, taken.manifest.total_bytes)]
        numbers = believed.by_part(taken.buckets) if len(parts) > 1 else [taken.buckets]
        checked = _parts_of(believed, len(parts))

        async def read(index: int, host: str, own: tuple[int, ...], window: Buffer) -> None:
            start, part = 0, parts[index]
            for names, batch in batches(own):
                kept = checked[index].only(batch)
                async with _ask(
                    client, host, hosts[host], version, **query, buckets=names
                ) as answer:
                    if await _read_manifest(answer.content, limit) != part:
                        raise CatchUpError("sent another manifest than before")
                    end = start + kept.total_bytes
                    await _read_buffer(answer.content, kept, window.window(start, end), batch)
                    start = end

        # No wait for a buffer: this is an event loop's thread.
        with stage.staging(version, taken.manifest, timeout=0) as buffer:
            async with asyncio.TaskGroup() as group:
                for index, (host, own, bounds) in enumerate(zip(hosts, numbers, each, strict=True)):
                    group.create_task(read(index, host, own, buffer.window(*bounds)))
    except asyncio.IncompleteReadError as error:
        raise _cut_off(error) from error
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def _cut_off(error: asyncio.IncompleteReadError) -> CatchUpError:
    return CatchUpError(f"ended after {len(error.partial)} of a part's bytes")


@asynccontextmanager
async def _ask(
    client: aiohttp.ClientSession, host: str, ticket: str, version: Version, **query: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    url = f"http://{host}{WEIGHTS_ROUTE}"
    params = {"version": str(version), **query}
    headers = {TICKET_HEADER: ticket}
    async with client.get(url, params=params, headers=headers) as answer:
        if answer.status != 200:
            text = (await answer.content.read(200)).decode(errors="replace")
            raise CatchUpError(f"HTTP {answer.status}: {text}")
        yield answer


def _compare(held: WeightManifest, expected: WeightManifest) -> None:
    """Raise DigestMismatchError unless the donor describes what the trainer made.

    A donor may have the checksums that came with a version in the place of digests.
    """
    if held.check is not expected.check and len(held.digests) == len(expected.digests):
        held = replace(held, digests=expected.digests, check=expected.check)
    if held != expected:
        raise DigestMismatchError("describes other weights than the trainer made")


def _parts_of(whole: WeightManifest, count: int) -> list[WeightManifest]:
    return [whole] if count == 1 else [whole.part(index) for index in range(count)]


def _manifest_limit(whole: WeightManifest) -> int:
    """Bytes that no honest donor's manifest exceeds: that of a shard is a little longer at most."""
    return 2 * len(_encoded(whole))


def _encoded(manifest: WeightManifest) -> bytes:
    return json.dumps(encode(manifest), separators=(",", ":")).encode()


async def _read_manifest(stream: aiohttp.StreamReader, limit: int) -> WeightManifest:
    (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
    if length > limit:
        raise DigestMismatchError(f"announces a manifest of {length} bytes, more than {limit}")
    try:
        return decode(WeightManifest, json.loads(await stream.readexactly(length)))
    except ValueError as error:
        raise CatchUpError(f"bad manifest: {error}") from error


async def _read_buffer(
    stream: aiohttp.StreamReader,
    manifest: WeightManifest,
    buffer: Buffer,
    numbers: Sequence[int] | None = None,
) -> None:
    """Fill the buffer; `numbers` are what an error calls its buckets, if they are some of many."""
    scratch = buffer.scratch(min(manifest.bucket_bytes, manifest.total_bytes))
    for index, (start, end) in enumerate(manifest.buckets()):
        there = buffer.device == "cpu"
        bucket = buffer.memory[start:end] if there else scratch[: end - start]
        position = 0
        while position < len(bucket):
            chunk = await stream.read(min(len(bucket) - position, _CHUNK_BYTES))
            if not chunk:
                whole = manifest.total_bytes
                raise CatchUpError(f"ended after {start + position} of {whole} bytes")
            bucket[position : position + len(chunk)] = chunk
            position += len(chunk)
        if await asyncio.to_thread(digest_of, bucket) != manifest.digests[index]:
            named = index if numbers is None else numbers[index]
            raise DigestMismatchError(f"wrong digest in bucket {named}")
        if not there:
            await asyncio.to_thread(buffer.write, start, bucket)
