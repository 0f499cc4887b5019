"""The status of a job on a live screen."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live

from rollcall_cli.job_summary import read_summary
from rollcall_cli.screens import status_screen
from rollcall_operator.kube.errors import ApiError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import RenderableType

    from rollcall_operator.kube.client import KubeClient


async def watch(
    client: KubeClient, *, namespace: str, job: str, every: float, console: Console | None = None
) -> None:
    """Draw the status each `every` seconds until cancelled; an outage is shown, and waited out.

    NoSuchJobError, ApiError or UnreachableError if the first reading fails.
    """
    shown: RenderableType = ""
    console = console or Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        async for found in _readings(client, namespace, job, every):
            if isinstance(found, Exception):
                screen.update(Group(shown, "", f"Not read again: {found}"), refresh=True)
            else:
                shown = status_screen(found, now=time.time())
                screen.update(shown, refresh=True)


async def print_lines(client: KubeClient, *, namespace: str, job: str, every: float) -> None:
    """Print the status as JSON each `every` seconds until cancelled, one object in a line.

    Outages go to standard error. Raises as `watch` does.
    """
    async for found in _readings(client, namespace, job, every):
        if isinstance(found, Exception):
            print(f"rollcall: not read again: {found}", file=sys.stderr, flush=True)
        else:
            print(json.dumps(found), flush=True)


async def _readings(
    client: KubeClient, namespace: str, job: str, every: float
) -> AsyncIterator[dict[str, Any] | Exception]:
    """The status, or what keeps it from being read; an error of the first reading is raised."""
    first = True
    while True:
        try:
            yield await read_summary(client, namespace=namespace, name=job)
        except (ApiError, UnreachableError) as error:
            if first:
                raise
            yield error
        first = False
        await asyncio.sleep(every)
