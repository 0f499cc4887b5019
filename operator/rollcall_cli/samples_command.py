"""`rollcall samples`: responses that a job was trained on."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rollcall_cli.cluster import chosen_cluster
from rollcall_cli.job_record import NoSuchJobError, get_job
from rollcall_cli.job_samples import as_object, follow_samples, read_samples
from rollcall_cli.sample_screen import LEGENDS, samples_screen
from rollcall_cli.visible_text import visible
from rollcall_protocol.sample_query import SampleQuery
from rollcall_protocol.sample_record import read_records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from rollcall_protocol.sample_record import SampleRecord


async def run(options: argparse.Namespace) -> int:
    """Print them. BadQueryError for an option; raises as `get_job` and `read_samples`."""
    given = {"step": options.step, "prompt": options.prompt, "limit": options.limit}
    asked = {name: value for name, value in given.items() if value is not None}
    query = SampleQuery.of({**asked, "order": options.order})
    kept: Path | None = options.kept_samples
    if kept is not None:
        _print(options, _read_file(kept, query, job=options.job))
        return 0
    async with chosen_cluster(options) as (client, namespace):
        where = {"namespace": namespace, "job": options.job}
        await get_job(client, namespace=namespace, name=options.job)
        if not options.follow:
            _print(options, await read_samples(client, **where, query=query))
            return 0
        async for found in follow_samples(client, **where, query=query):
            if isinstance(found, Exception):
                print(visible(f"rollcall: not read again: {found}"), file=sys.stderr, flush=True)
            elif found:
                _print(options, found)
    return 0


def _read_file(path: Path, query: SampleQuery, *, job: str) -> list[SampleRecord]:
    """NoSuchJobError without the file."""
    if not path.is_file():
        raise NoSuchJobError(f"the run has ended, and no responses of a job {job!r} were recorded")
    lines = path.read_bytes().splitlines(keepends=True)
    return read_records(b"".join(query.choose(lambda: lines)))


def _print(options: argparse.Namespace, records: Sequence[SampleRecord]) -> None:
    if options.output == "json":
        for record in records:
            print(json.dumps(as_object(record)), flush=True)
        return
    console = Console(highlight=False)
    console.print(samples_screen(records, colour=options.color))
    if records:
        console.print(Text(LEGENDS[options.color], style="dim"))
