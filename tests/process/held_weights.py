"""The weights that a rollout holds, asked of it as a newcomer does."""

from dataclasses import replace

import aiohttp
from torch import Tensor

from rollcall_protocol import pod_contract
from rollcall_protocol.pod_contract import TICKET_HEADER
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import decode, parse
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.errors import CatchUpError
from rollcall_runtime.sync.weights.catch_up import fetch
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.process.pods import Pod
from tests.process.ticket_giver import TicketGiver


async def weights_of(
    pod: Pod, lineage: Lineage, keys: TicketGiver
) -> tuple[Version, bytes, dict[str, Tensor]]:
    """The version of `lineage` that a rollout serves, the whole of its weights, its tensors.

    CatchUpError if it serves another one by now.
    """
    values = await pod.metrics()
    version, stage = Version(lineage, int(values["weight_version"])), StagingArea()
    donor = f"{pod.address}:{pod_contract.AGENT_PORT}"
    ticket = await keys.ticket(pod.uid, version)
    manifest = await _described(donor, version, ticket)
    await fetch(version=version, manifest=manifest, donors=[donor], tickets=[ticket], stage=stage)
    with stage.committing(version) as snapshot:
        tensors = {name: tensor.clone() for name, tensor in snapshot.tensors()}
        return version, bytes(snapshot.host.memory), tensors


async def _described(donor: str, version: Version, ticket: str) -> WeightManifest:
    """What a rollout says of the version that it serves, with digests of the bytes that it gives.

    A newcomer has the digests from the coordinator.
    """
    url, headers = f"http://{donor}{pod_contract.WEIGHTS_ROUTE}", {TICKET_HEADER: ticket}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(url, params={"version": str(version)}) as answer,
    ):
        if answer.status != 200:
            raise CatchUpError(f"HTTP {answer.status}")
        body = memoryview(await answer.read())
    end = 8 + int.from_bytes(body[:8], "big")
    manifest = decode(WeightManifest, parse(bytes(body[8:end])))
    data = body[end:]
    digests = tuple(digest_of(data[first:last]) for first, last in manifest.buckets())
    return replace(manifest, digests=digests, check=BucketCheck.BLAKE3)
