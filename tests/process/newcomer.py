"""A rollout that only says Hello, so that a test sees what the coordinator sends to newcomers."""

import asyncio

import aiohttp

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import COORDINATOR_MESSAGES, CatchUp, Hello, dumps, loads
from tests.process.harness import LocalJob
from tests.process.pods import Pod


async def catch_up_of(job: LocalJob, pod: Pod, *, seconds: float) -> CatchUp:
    """The CatchUp that the coordinator sends to `pod`, which is on the roster and runs nothing."""
    route, headers = pod_contract.MEMBER_STREAM_ROUTE, {"Authorization": ""}
    headers["Authorization"] = f"Bearer {pod.token(job.config.uid)}"
    url = f"http://{job.trainer.address}:{pod_contract.MEMBERSHIP_PORT}{route}"
    member = MemberId(pod.uid, "a boot")
    hello = Hello(job.config.uid, pod.group, member, pod.name, "reverse-cpu", pod.address, "")
    async with (
        asyncio.timeout(seconds),
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(url, max_msg_size=0) as socket,
    ):
        await socket.send_str(dumps(hello))
        async for frame in socket:
            message = loads(frame.data, COORDINATOR_MESSAGES)
            if isinstance(message, CatchUp):
                return message
    raise AssertionError("the coordinator sent no CatchUp")
