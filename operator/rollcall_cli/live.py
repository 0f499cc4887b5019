"""The status of a job on a live screen."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live

from rollcall_cli.job_summary import read_summary
from rollcall_cli.screens import status_screen
from rollcall_operator.kube.errors import ApiError, UnreachableError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rollcall_operator.kube.client import KubeClient


async def watch(
    client: KubeClient,
    *,
    namespace: str,
    job: str,
    every: float,
    console: Console | None = None,
) -> None:
    """Draw the status each `every` seconds until cancelled; an outage is shown, and waited out.

    NoSuchJobError, ApiError or UnreachableError if the first reading fails.
    """
    shown: RenderableType | None = None
    console = console or Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        while True:
            try:
                summary = await read_summary(client, namespace=namespace, name=job)
                shown = status_screen(summary, now=time.time())
                screen.update(shown, refresh=True)
            except (ApiError, UnreachableError) as error:
                if shown is None:
                    raise
                screen.update(Group(shown, "", f"Not read again: {error}"), refresh=True)
            await asyncio.sleep(every)
