"""rollcall COMMAND: what people ask of a running job, and change of it.

Named kubectl-rollcall on the PATH, it is kubectl's plugin: `kubectl rollcall COMMAND`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rollcall_cli import job_logs, live, screens
from rollcall_cli.changes import NotARolloutError, drain, set_suspended
from rollcall_cli.cluster import add_cluster_options, chosen_cluster
from rollcall_cli.job_record import NoSuchJobError, read_job
from rollcall_cli.job_summary import read_summary
from rollcall_operator.kube.connection import ConfigurationError
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_protocol import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SCREENS: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    "status": (
        "one screen: what the job does now and waits for, who is behind, its last epochs",
        screens.status_screen,
        (),
    ),
    "epochs": (
        "the epochs with their causes, and the sessions formed in them",
        screens.epochs_screen,
        ("epochs", "sessions"),
    ),
    "pools": (
        "the pools, and what each of their rollouts serves",
        screens.pools_screen,
        ("pools", "rollouts"),
    ),
}
"""By command: its help, what draws it, and the part of the summary that it shows (all: none)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(asyncio.run(options.run(options)))
    except KeyboardInterrupt:
        return 0
    except (
        NoSuchJobError,
        NotARolloutError,
        ConfigurationError,
        ApiError,
        UnreachableError,
        OSError,
    ) as error:
        print(f"rollcall: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollcall", description="Looks at RLJobs and their rollouts in a cluster."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (text, *_) in _SCREENS.items():
        screen = commands.add_parser(name, help=text)
        screen.add_argument("job", help="name of the RLJob")
        screen.add_argument("-o", "--output", choices=["json"], help="JSON in place of tables")
        screen.set_defaults(run=_show, command=name)
        add_cluster_options(screen)
    watching = commands.add_parser("watch", help="status, again and again, until Ctrl-C")
    watching.add_argument("job", help="name of the RLJob")
    watching.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    watching.set_defaults(run=_watch)
    add_cluster_options(watching)
    _add_logs(commands)
    for name, text in (
        ("suspend", "set spec.suspend: the pods end, the last checkpoint is kept"),
        ("resume", "take spec.suspend back: training goes on from the last checkpoint"),
    ):
        change = commands.add_parser(name, help=text)
        change.add_argument("job", help="name of the RLJob")
        change.set_defaults(run=_suspend_or_resume, command=name)
        add_cluster_options(change)
    draining = commands.add_parser(
        "drain", help="delete a rollout's pod: its prompts move, and another one takes its place"
    )
    draining.add_argument("pod", help="name of the rollout's pod")
    draining.set_defaults(run=_drain)
    add_cluster_options(draining)
    report = commands.add_parser(
        "report",
        help="write one HTML file: reward, loss, staleness, throughput, idle time and weight sync "
        "over time, epochs, sessions, events, and the spec",
    )
    report.add_argument("job", help="name of the RLJob")
    report.add_argument(
        "-o", "--output", type=Path, help="the file, or - for standard output (JOB-report.html)"
    )
    report.set_defaults(run=_report)
    add_cluster_options(report)
    return parser


def _add_logs(commands: Any) -> None:
    logs = commands.add_parser(
        "logs", help="the logs of trainer and rollouts as one, in the order of time"
    )
    logs.add_argument("job", help="name of the RLJob")
    logs.add_argument("--epoch", type=int, help="lines of this epoch")
    logs.add_argument("--step", type=int, help="lines until this step, from the one before on")
    logs.add_argument("--since", type=int, metavar="SECONDS", help="lines that are not older")
    logs.add_argument("--tail", type=int, default=5000, metavar="LINES", help="of each pod (5000)")
    logs.add_argument("-o", "--output", choices=["json"], help="an object in each line")
    logs.set_defaults(run=_logs)
    add_cluster_options(logs)


async def _show(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        summary = await read_summary(client, namespace=namespace, name=options.job)
    _, draw, parts = _SCREENS[options.command]
    if options.output == "json":
        chosen = {part: summary.get(part, []) for part in parts} if parts else summary
        print(json.dumps(chosen, indent=2))
    else:
        Console(highlight=False).print(draw(summary, now=time.time()))
    return 0


async def _watch(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        await live.watch(client, namespace=namespace, job=options.job, every=options.every)
    return 0


async def _logs(options: argparse.Namespace) -> int:
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
        print(f"rollcall: {sentence}", file=sys.stderr)
    return 1 if missing and not lines else 0


async def _suspend_or_resume(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        suspended = options.command == "suspend"
        print(
            await set_suspended(client, namespace=namespace, name=options.job, suspended=suspended)
        )
    return 0


async def _drain(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        print(await drain(client, namespace=namespace, pod=options.pod))
    return 0


async def _report(options: argparse.Namespace) -> int:
    from rollcall_cli.report.page import render  # noqa: PLC0415 - matplotlib, for this alone

    async with chosen_cluster(options) as (client, namespace):
        record = await read_job(client, namespace=namespace, name=options.job)
    text = render(record)
    path: Path = options.output or Path(f"{options.job}-report.html")
    if str(path) == "-":
        sys.stdout.write(text)
        return 0
    await asyncio.to_thread(_write, path, text)
    for sentence in record.missing:
        print(f"rollcall: {sentence}", file=sys.stderr)
    print(path)
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
