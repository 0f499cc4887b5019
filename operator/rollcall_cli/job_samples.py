"""The recorded responses of a job, as its trainer gives them, and as they come."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollcall_cli.trainer_pod import read_from_trainer
from rollcall_operator.kube.errors import ApiError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import RL_JOBS
from rollcall_protocol.sample_query import MOST_ANSWER, MOST_ANSWERED
from rollcall_protocol.sample_record import expanded, read_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rollcall_operator.kube.client import KubeClient
    from rollcall_protocol.sample_query import SampleQuery
    from rollcall_protocol.sample_record import SampleRecord

FOLLOW_SECONDS = 2.0  # between two readings
_OVER = {"Succeeded", "Failed"}


async def read_samples(
    client: KubeClient, *, namespace: str, job: str, query: SampleQuery
) -> list[SampleRecord]:
    """What `query` asks for; none before the first is recorded. Raises as `read_from_trainer`."""
    try:
        content = await read_from_trainer(
            client, namespace=namespace, job=job, route=query.route(), most_bytes=MOST_ANSWER
        )
    except NotFoundError:
        return []
    return read_records(content)[:MOST_ANSWERED]


async def follow_samples(
    client: KubeClient, *, namespace: str, job: str, query: SampleQuery
) -> AsyncIterator[list[SampleRecord] | Exception]:
    """Those that `query` asks for, then new ones as they are recorded, until the job is over.

    An outage is yielded, and waited out; an error of the first reading is raised.
    """
    seen: set[tuple[int, int, int, float]] = set()
    first, over = True, False
    while not over:
        try:
            status = (await client.get(RL_JOBS, namespace=namespace, name=job)).get("status") or {}
            over = status.get("phase") in _OVER  # what is read now is the last
            found = await read_samples(client, namespace=namespace, job=job, query=query)
        except (ApiError, UnreachableError) as error:
            if first:
                raise
            yield error
        else:
            yield [record for record in found if _key(record) not in seen]
            if found:  # of those recorded at one time some may still come
                seen = {_key(record) for record in found}
                query = replace(query, since=found[-1].time, limit=MOST_ANSWERED)
        first = False
        if not over:
            await asyncio.sleep(FOLLOW_SECONDS)


def as_object(record: SampleRecord) -> dict[str, Any]:
    """A line of `rollcall samples -o json`: with the whole response, and a value for each token."""
    return {
        "step": record.step,
        "prompt": record.prompt,
        "sample": record.sample,
        "time": record.time,
        "reward": record.reward,
        "rewardParts": dict(record.parts),
        "groupSize": record.group_size,
        "groupMean": record.group_mean,
        "promptText": record.prompt_text,
        "response": record.response,
        "tokens": list(record.tokens),
        "tokensLeftOut": record.left_out,
        "advantages": expanded(record.advantages),
        "mismatch": list(record.mismatch),
        "versions": expanded(record.versions),
        "trainedVersion": record.trained_version,
        "ended": record.ended,
        "seconds": record.seconds,
    }


def _key(record: SampleRecord) -> tuple[int, int, int, float]:
    return record.step, record.prompt, record.sample, record.time
