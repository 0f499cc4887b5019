"""The weights that a rollout holds, asked of it as a newcomer does."""

import aiohttp
from torch import Tensor

from rollcall_protocol import pod_contract
from rollcall_protocol.pod_contract import TICKET_HEADER
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import decode, parse
from rollcall_protocol.wire.weight_manifest import WeightManifest
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
    """What a rollout says of the version that it serves."""
    url, headers = f"http://{donor}{pod_contract.WEIGHTS_ROUTE}", {TICKET_HEADER: ticket}
    query = {"version": str(version), "buckets": ""}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(url, params=query) as answer,
    ):
        if answer.status != 200:
            raise CatchUpError(f"HTTP {answer.status}")
        return decode(WeightManifest, parse((await answer.read())[8:]))
