"""The status of a job on a live screen."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from rollcall_cli.job_summary import read_summary
from rollcall_cli.screens import status_screen
from rollcall_cli.visible_text import visible, visible_values
from rollcall_operator.kube.errors import ApiError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from rich.console import RenderableType

    from rollcall_operator.kube.client import KubeClient


_PACE_SECONDS = 120.0


async def watch(
    client: KubeClient, *, namespace: str, job: str, every: float, console: Console | None = None
) -> None:
    """Draw the status each `every` seconds until cancelled; an outage is shown, and waited out.

    NoSuchJobError, ApiError or UnreachableError if the first reading fails.
    """
    shown: RenderableType = ""
    console, pace = console or Console(highlight=False), Pace()
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        async for found in _readings(client, namespace, job, every):
            if isinstance(found, Exception):
                above = Text(visible(f"Not read again: {found}"), style="bold red")
            else:
                now = time.time()
                progress = _progress(found, pace.words(found, now))
                shown = Group(*progress, status_screen(visible_values(found), now=now))
                above = Text(
                    f"Read {time.strftime('%H:%M:%S', time.localtime(now))}, again every {every:g} "
                    "s. Ctrl-C ends this.",
                    style="dim",
                )
            screen.update(Group(above, shown), refresh=True)  # a small screen cuts what is below


async def print_lines(client: KubeClient, *, namespace: str, job: str, every: float) -> None:
    """Print the status as JSON each `every` seconds until cancelled, one object in a line.

    Outages go to standard error. Raises as `watch` does.
    """
    async for found in _readings(client, namespace, job, every):
        if isinstance(found, Exception):
            print(visible(f"rollcall: not read again: {found}"), file=sys.stderr, flush=True)
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


def _progress(summary: Mapping[str, Any], pace: str) -> list[RenderableType]:
    """A bar for the steps that were made, if it is known of how many, and how fast they follow each
    other.
    """
    if not summary.get("maxSteps"):
        return [Text(pace, style="dim"), ""] if pace else []
    bar = ProgressBar(total=summary["maxSteps"], completed=summary.get("step", 0))
    line = Table.grid(Column(ratio=1), Column(no_wrap=True), padding=(0, 2), expand=True)
    line.add_row(bar, Text(pace, style="dim"))
    return [line, ""]


class Pace:
    """How fast steps follow each other, from the readings of the last two minutes."""

    def __init__(self) -> None:
        """Without a reading there is none."""
        self._read: list[tuple[float, int]] = []  # Unix seconds, step

    def words(self, summary: Mapping[str, Any], now: float) -> str:
        """Such as `12.5 steps a minute, about 4 min left`; nothing while none was made."""
        step, most = summary.get("step", 0), summary.get("maxSteps", 0)
        if self._read and step < self._read[-1][1]:  # the trainer has restarted
            self._read.clear()
        self._read = [*(one for one in self._read if now - one[0] <= _PACE_SECONDS), (now, step)]
        since, first = self._read[0]
        if step == first or summary.get("phase") != "Running":
            return ""
        a_second = (step - first) / (now - since)
        pace = f"{a_second * 60:.1f} steps a minute"
        if not most:
            return pace
        left = (most - step) / a_second
        time_left = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        return f"{pace}, about {time_left} left"
