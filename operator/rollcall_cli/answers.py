"""What each command of `rollcall` does, with options that are parsed already."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_cli import job_actions
from rollcall_cli.cluster import chosen_cluster
from rollcall_cli.job_actions import FinishedJobError, NoSuchObjectError
from rollcall_cli.job_description import read_description
from rollcall_cli.job_record import NoSuchJobError, read_job
from rollcall_cli.job_summary import read_summary
from rollcall_cli.visible_text import visible_lines, visible_values
from rollcall_operator.kube.connection import ConfigurationError
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_protocol.sample_query import BadQueryError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Coroutine

    from rollcall_cli.job_actions import Change
    from rollcall_operator.kube.client import KubeClient

_STANDARD_OUTPUT = Path("-")
_BROKEN_PIPE = 141  # as a shell says it of a program that SIGPIPE ends
_PARTS = {"epochs": ("epochs", "sessions"), "pools": ("pools", "rollouts")}
"""By command: the parts of the summary that it shows; `status` shows all."""


def outcome(work: Coroutine[Any, Any, int]) -> int:
    """The exit code of `answer`, or of what has it in it; errors are said in a sentence."""
    try:
        code = asyncio.run(work)
        sys.stdout.flush()
        return code  # noqa: TRY300 - with it, errors of the flush are caught
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # whoever read the output has enough of it
        with open(os.devnull, "w", encoding="utf-8") as nothing:  # noqa: PTH123 - no path to read
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (
        NoSuchJobError,
        NoSuchObjectError,
        FinishedJobError,
        BadQueryError,
        ConfigurationError,
        ApiError,
        UnreachableError,
        OSError,
    ) as error:
        print(visible_lines(f"rollcall: {error}"), file=sys.stderr)
        return 1


async def answer(options: argparse.Namespace) -> int:
    """Carry out a parsed command; returns the exit code."""
    return await _ANSWERS[options.command](options)


async def _show(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        summary = await read_summary(client, namespace=namespace, name=options.job)
    if options.output == "json" and options.command in _PARTS:
        summary = {part: summary.get(part, []) for part in _PARTS[options.command]}
    _print(options, summary)
    return 0


async def _watch(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        from rollcall_cli import live  # noqa: PLC0415 - a live screen, for this alone

        show = live.print_lines if options.output == "json" else live.watch
        await show(client, namespace=namespace, job=options.job, every=options.every)
    return 0


async def _logs(options: argparse.Namespace) -> int:
    from rollcall_cli import job_logs  # noqa: PLC0415 - reads pods as the planner does

    async with chosen_cluster(options) as (client, namespace):
        lines, missing = await job_logs.read_logs(
            client, namespace=namespace, job=options.job, tail=options.tail, since=options.since
        )
    if options.epoch is not None:
        lines = job_logs.of_epoch(lines, options.epoch)
    if options.step is not None:
        lines = job_logs.of_step(lines, options.step)
    for line in lines:
        print(json.dumps(asdict(line)) if options.output == "json" else line.text())
    for sentence in missing:
        print(visible_lines(f"rollcall: {sentence}"), file=sys.stderr)
    return 1 if missing and not lines else 0


async def _describe(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        found = await read_description(client, namespace=namespace, name=options.job)
    _print(options, found)
    return 0


def _print(options: argparse.Namespace, found: dict[str, Any]) -> None:
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console  # noqa: PLC0415 - JSON needs no terminal

    from rollcall_cli import screens  # noqa: PLC0415

    draw = {
        "status": screens.status_screen,
        "epochs": screens.epochs_screen,
        "pools": screens.pools_screen,
        "describe": screens.description_screen,
    }[options.command]
    screens.print_wide(Console(highlight=False), draw(visible_values(found), now=time.time()))


async def _change(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        change = await _CHANGES[options.command](client, namespace, options)
    as_json = options.output == "json"
    print(json.dumps(change, indent=2) if as_json else visible_lines(change["message"]))
    return 0


_CHANGES: dict[str, Callable[[KubeClient, str, argparse.Namespace], Awaitable[Change]]] = {
    "suspend": lambda client, namespace, options: job_actions.set_suspended(
        client, namespace=namespace, name=options.job, suspended=True
    ),
    "resume": lambda client, namespace, options: job_actions.set_suspended(
        client, namespace=namespace, name=options.job, suspended=False
    ),
    "drain": lambda client, namespace, options: job_actions.drain(
        client, namespace=namespace, pod=options.pod
    ),
    "kill": lambda client, namespace, options: job_actions.kill(
        client, namespace=namespace, pod=options.pod
    ),
    "scale": lambda client, namespace, options: job_actions.scale(
        client, namespace=namespace, pool=options.pool, replicas=options.replicas
    ),
    "delete": lambda client, namespace, options: job_actions.delete(
        client, namespace=namespace, name=options.job
    ),
}


async def _report(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        record = await read_job(client, namespace=namespace, name=options.job)
    if options.output == "json":
        text, path = json.dumps(record.as_json(), indent=2), options.file or _STANDARD_OUTPUT
    else:
        from rollcall_cli.html_report.page import render  # noqa: PLC0415 - matplotlib, for this alone

        text, path = render(record), options.file or Path(f"{options.job}-report.html")
    if path == _STANDARD_OUTPUT:
        print(text)
    else:
        await asyncio.to_thread(_write, path, text)
        print(path)
    for sentence in record.missing:
        print(visible_lines(f"rollcall: {sentence}"), file=sys.stderr)
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


async def _samples(options: argparse.Namespace) -> int:
    from rollcall_cli import samples_command  # noqa: PLC0415 - for this alone

    return await samples_command.run(options)


_ANSWERS: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
    "status": _show,
    "epochs": _show,
    "pools": _show,
    "watch": _watch,
    "logs": _logs,
    "describe": _describe,
    "report": _report,
    "samples": _samples,
    **dict.fromkeys(_CHANGES, _change),
}
