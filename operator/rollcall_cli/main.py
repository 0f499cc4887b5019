"""rollcall COMMAND: what people ask of a running job, and change of it.

Named kubectl-rollcall on the PATH, it is kubectl's plugin: `kubectl rollcall COMMAND`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rollcall_cli import job_actions, job_logs, live, screens
from rollcall_cli.cluster import add_cluster_options, chosen_cluster
from rollcall_cli.job_actions import NoSuchObjectError
from rollcall_cli.job_description import read_description
from rollcall_cli.job_record import NoSuchJobError, read_job
from rollcall_cli.job_summary import read_summary
from rollcall_operator.kube.connection import ConfigurationError
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_protocol import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rollcall_cli.job_actions import Change
    from rollcall_operator.kube.client import KubeClient

PLUGINS = "rollcall.commands"
"""Entry points of more commands: functions that take the words after their name, and return the
exit code.
"""
_STANDARD_OUTPUT = Path("-")
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
    words = sys.argv[1:] if arguments is None else list(arguments)
    for found in entry_points(group=PLUGINS):
        if words[:1] == [found.name]:
            return int(found.load()(words[1:]))
    return answer(parser().parse_args(words))


def answer(options: argparse.Namespace) -> int:
    """Carry out a parsed command; returns the exit code."""
    try:
        return int(asyncio.run(options.run(options)))
    except KeyboardInterrupt:
        return 0
    except (
        NoSuchJobError,
        NoSuchObjectError,
        ConfigurationError,
        ApiError,
        UnreachableError,
        OSError,
    ) as error:
        print(f"rollcall: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    whole = argparse.ArgumentParser(
        prog="rollcall", description="Looks at RLJobs and their rollouts in a cluster."
    )
    whole.add_argument("--version", action="version", version=__version__)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    add_commands(Commands(commands, add_cluster_options))
    for found in entry_points(group=PLUGINS):
        commands.add_parser(found.name, add_help=False, help=f"see rollcall {found.name} --help")
    return whole


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of a parser; `place` adds the options that say where the job is."""

    subparsers: Any
    place: Callable[[argparse.ArgumentParser], None]

    def add(
        self,
        name: str,
        run: Callable[[argparse.Namespace], Awaitable[int]],
        text: str,
        *,
        about: tuple[str, str] = ("job", "name of the RLJob"),
        as_json: str = "JSON in place of a sentence",
    ) -> argparse.ArgumentParser:
        """A command about one object, with the options that all have."""
        command: argparse.ArgumentParser = self.subparsers.add_parser(
            name, help=text, description=text
        )
        command.add_argument(about[0], help=about[1])
        command.add_argument("-o", "--output", choices=["json"], help=as_json)
        command.set_defaults(run=run, command=name)
        self.place(command)
        return command


def add_commands(commands: Commands) -> None:
    """All commands about jobs, wherever these are."""
    for name, (text, *_) in _SCREENS.items():
        commands.add(name, _show, text, as_json="JSON in place of tables")
    _add_watch(commands)
    _add_logs(commands)
    _add_describe(commands)
    _add_changes(commands)
    _add_report(commands)


def _add_changes(commands: Commands) -> None:
    a_pod = ("pod", "name of the pod")
    commands.add("suspend", _change, "set spec.suspend: the pods end, the last checkpoint is kept")
    commands.add(
        "resume", _change, "take spec.suspend back: training goes on from the last checkpoint"
    )
    commands.add(
        "drain",
        _change,
        "delete a rollout's pod: its prompts move, and another one takes its place",
        about=a_pod,
    )
    commands.add("kill", _change, "end a pod of a job at once, as a lost machine does", about=a_pod)
    scale = commands.add(
        "scale", _change, "set the number of a pool's rollouts", about=("pool", "its name")
    )
    scale.add_argument("replicas", type=int, help="how many rollouts")
    commands.add("delete", _change, "delete a job with all that belongs to it; volumes stay")


def _add_watch(commands: Commands) -> None:
    text = "status, again and again, until Ctrl-C"
    watch = commands.add(
        "watch", _watch, text, as_json="an object in each line in place of a screen"
    )
    watch.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="between two readings (2)"
    )


def _add_logs(commands: Commands) -> None:
    text = "the logs of trainer and rollouts as one, in the order of time"
    logs = commands.add("logs", _logs, text, as_json="an object in each line")
    logs.add_argument("--epoch", type=int, help="lines of this epoch")
    logs.add_argument("--step", type=int, help="lines until this step, from the one before on")
    logs.add_argument("--since", type=int, metavar="SECONDS", help="lines that are not older")
    logs.add_argument("--tail", type=int, default=5000, metavar="LINES", help="of each pod (5000)")


def _add_describe(commands: Commands) -> None:
    text = "what the operator says of a job: its conditions, pods and events"
    commands.add("describe", _describe, text, as_json="JSON in place of tables")


def _add_report(commands: Commands) -> None:
    text = (
        "write one HTML file: reward, loss, staleness, throughput, idle time and weight sync over "
        "time, epochs, sessions, events, and the spec"
    )
    report = commands.add("report", _report, text, as_json="what the file is made of, as JSON")
    report.add_argument(
        "-f",
        "--file",
        type=Path,
        help="where to write, - for standard output (JOB-report.html; with -o json -)",
    )


async def _show(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        summary = await read_summary(client, namespace=namespace, name=options.job)
    _, draw, parts = _SCREENS[options.command]
    if options.output == "json" and parts:
        summary = {part: summary.get(part, []) for part in parts}
    _print(options, summary, draw)
    return 0


async def _watch(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        show = live.print_lines if options.output == "json" else live.watch
        await show(client, namespace=namespace, job=options.job, every=options.every)
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


async def _describe(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        found = await read_description(client, namespace=namespace, name=options.job)
    _print(options, found, screens.description_screen)
    return 0


def _print(options: argparse.Namespace, found: dict[str, Any], draw: Callable[..., Any]) -> None:
    if options.output == "json":
        print(json.dumps(found, indent=2))
    else:
        Console(highlight=False).print(draw(found, now=time.time()))


async def _change(options: argparse.Namespace) -> int:
    async with chosen_cluster(options) as (client, namespace):
        change = await _CHANGES[options.command](client, namespace, options)
    print(json.dumps(change, indent=2) if options.output == "json" else change["message"])
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
        print(f"rollcall: {sentence}", file=sys.stderr)
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
