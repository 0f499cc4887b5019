"""`rollcall local COMMAND`: the words of `rollcall`, for jobs on this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rollcall_cli import main as cluster_commands
from rollcall_cli.visible_text import visible_lines
from rollcall_local.errors import LocalError
from rollcall_local.kubelet.addresses import NoAddressError
from rollcall_local.manifest_options import add_manifest_options, given_images, given_manifests

_EXIT_REFUSED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.start(options))
    except KeyboardInterrupt:
        return 130
    except (LocalError, NoAddressError, OSError, ValueError) as error:
        print(f"rollcall local: {error}", file=sys.stderr)
        return _EXIT_REFUSED


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    whole = argparse.ArgumentParser(
        prog="rollcall local",
        description="Runs RLJobs as processes of this machine, and looks at them.",
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    listing = commands.add_parser("list", help="the runs on this machine, ended ones included")
    listing.add_argument("-o", "--output", choices=["json"], help="JSON in place of a table")
    listing.set_defaults(start=_list)
    cluster_commands.add_commands(cluster_commands.Commands(commands, _place))
    return whole


def _add_run(commands: Any) -> None:
    text = (
        "run RLJobs with their pools, ConfigMaps and Secrets until they are over; Ctrl-C ends them "
        "and keeps all, and the same command goes on from the last checkpoint"
    )
    run = commands.add_parser("run", help=text, description=text)
    add_manifest_options(run)
    run.add_argument("--name", default="", help="of the run (default: that of its first RLJob)")
    run.set_defaults(start=_run)


def _place(command: argparse.ArgumentParser) -> None:
    """The options that say where a job is."""
    command.add_argument("--run", default="", dest="local_run", help="the run (that of the job)")
    command.add_argument("-n", "--namespace", default="default", help="namespace (default)")
    command.set_defaults(start=_ask, context=None)


def _run(options: argparse.Namespace) -> int:
    from rollcall_local.run import RunOptions, run  # noqa: PLC0415 - the others need less

    files, folders = given_manifests(options)
    chosen = RunOptions(
        files=files, folders=folders, images=given_images(options), name=options.name
    )
    return run(chosen, say=lambda line: print(visible_lines(line), flush=True))


def _list(options: argparse.Namespace) -> int:
    from rollcall_local import runs  # noqa: PLC0415 - `run` has no need of it

    rows = [runs.summary(folder) for folder in runs.all_runs()]
    if options.output == "json":
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console  # noqa: PLC0415 - JSON needs no terminal
    from rich.table import Table  # noqa: PLC0415

    table = Table("run", "process", "jobs", "folder", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(highlight=False).print(table if rows else "There is no run.")
    return 0


def _ask(options: argparse.Namespace) -> int:
    """Carry out a word of `rollcall` at the API server of a run."""
    from rollcall_cli.answers import answer, outcome  # noqa: PLC0415 - `run` has no need of them
    from rollcall_local import runs  # noqa: PLC0415

    folder = runs.chosen(options.local_run, getattr(options, "job", ""))
    if options.command == "samples" and folder.holder() is None:
        options.kept_samples = folder.samples(options.job)

    async def at_the_run() -> int:
        async with runs.opened(folder) as kubeconfig:
            options.kubeconfig = str(kubeconfig)
            return await answer(options)

    return outcome(at_the_run())
