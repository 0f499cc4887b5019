"""The report at the end of a demo, as `rollcall report` writes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hack.cluster.progress import say
from rollcall_cli.cluster import open_cluster
from rollcall_cli.html_report.page import render
from rollcall_cli.job_record import JobRecord, read_job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hack.cluster.kubectl import Kubectl


def write_report(
    kubectl: Kubectl, job: str, *, into: Path, pictures: Mapping[str, str] | None = None
) -> None:
    """Write the job's report, and say where it is. `pictures`: SVGs by title.

    AssertionError if the trainer gave no figures of steps.
    """
    record = asyncio.run(_read(kubectl, job))
    if record.missing:
        raise AssertionError(f"the report of {job} is not whole: {record.missing[0]}")
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(render(record, pictures=pictures), encoding="utf-8")
    say(f"the job's report: {into}")


async def _read(kubectl: Kubectl, job: str) -> JobRecord:
    async with open_cluster(kubeconfig=kubectl.kubeconfig or None) as (client, _):
        return await read_job(client, namespace=kubectl.namespace, name=job)
