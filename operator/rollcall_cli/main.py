"""rollcall COMMAND: what people ask of a running job, and change of it.

Named kubectl-rollcall on the PATH, it is kubectl's plugin: `kubectl rollcall COMMAND`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_protocol import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PLUGINS = "rollcall.commands"
"""Entry points of more commands: functions that take the words after their name, and return the
exit code.
"""
_SCREENS = {
    "status": "one screen: what the job does now and waits for, who is behind, its last epochs",
    "epochs": "the epochs with their causes, and the sessions formed in them",
    "pools": "the pools, and what each of their rollouts serves",
}
"""Commands that show parts of the summary, with their help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    plugins = entry_points(group=PLUGINS)
    for found in plugins:
        if words[:1] == [found.name]:
            return int(found.load()(words[1:]))
    options = parser([plugin.name for plugin in plugins]).parse_args(words)
    from rollcall_cli.answers import answer, outcome  # noqa: PLC0415 - a wrong word is refused without it

    return outcome(answer(options))


def parser(plugins: Iterable[str] = ()) -> argparse.ArgumentParser:
    """All commands with their options, and the names of those of other packages."""
    whole = argparse.ArgumentParser(
        prog="rollcall", description="Looks at RLJobs and their rollouts in a cluster."
    )
    whole.add_argument("--version", action="version", version=__version__)
    _add_cluster_options(whole, default=None)  # as kubectl has them, before the command, too
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    add_commands(Commands(commands, _add_cluster_options))
    for name in plugins:
        commands.add_parser(name, add_help=False, help=f"see rollcall {name} --help")
    return whole


def _add_cluster_options(
    command: argparse.ArgumentParser, *, default: str | None = argparse.SUPPRESS
) -> None:
    """The options that name a cluster and a namespace; one that is left out behind a command keeps
    what was given before it.
    """
    for names, text in (
        (("-n", "--namespace"), "namespace (that of the kubeconfig's context)"),
        (("--kubeconfig",), "kubeconfig file (KUBECONFIG, then ~/.kube/config)"),
        (("--context",), "context of the kubeconfig (its current one)"),
    ):
        command.add_argument(*names, default=default, help=text)


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of a parser; `place` adds the options that say where the job is."""

    subparsers: Any
    place: Callable[[argparse.ArgumentParser], None]

    def add(
        self,
        name: str,
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
        command.set_defaults(command=name)
        self.place(command)
        return command


def add_commands(commands: Commands) -> None:
    """All commands about jobs, wherever these are."""
    for name, text in _SCREENS.items():
        commands.add(name, text, as_json="JSON in place of tables")
    _add_watch(commands)
    _add_logs(commands)
    _add_describe(commands)
    _add_changes(commands)
    _add_report(commands)
    _add_samples(commands)


def _add_changes(commands: Commands) -> None:
    a_pod = ("pod", "name of the pod")
    commands.add("suspend", "set spec.suspend: the pods end, the last checkpoint is kept")
    commands.add("resume", "take spec.suspend back: training goes on from the last checkpoint")
    commands.add(
        "drain",
        "delete a rollout's pod: its prompts move, and another one takes its place",
        about=a_pod,
    )
    commands.add("kill", "end a pod of a job at once, as a lost machine does", about=a_pod)
    scale = commands.add("scale", "set the number of a pool's rollouts", about=("pool", "its name"))
    scale.add_argument("replicas", type=int, help="how many rollouts")
    commands.add("delete", "delete a job with all that belongs to it; volumes stay")


def _add_watch(commands: Commands) -> None:
    text = "status, again and again, until Ctrl-C"
    watch = commands.add("watch", text, as_json="an object in each line in place of a screen")
    watch.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="between two readings (2)"
    )


def _add_logs(commands: Commands) -> None:
    text = "the logs of trainer and rollouts as one, in the order of time"
    logs = commands.add("logs", text, as_json="an object in each line")
    logs.add_argument("--epoch", type=int, help="lines of this epoch")
    logs.add_argument("--step", type=int, help="lines until this step, from the one before on")
    logs.add_argument("--since", type=int, metavar="SECONDS", help="lines that are not older")
    logs.add_argument("--tail", type=int, default=5000, metavar="LINES", help="of each pod (5000)")


def _add_describe(commands: Commands) -> None:
    text = "what the operator says of a job: its conditions, pods and events"
    commands.add("describe", text, as_json="JSON in place of tables")


def _add_report(commands: Commands) -> None:
    text = (
        "write one HTML file: reward, loss, staleness, throughput, idle time and weight sync over "
        "time, epochs, sessions, events, and the spec"
    )
    report = commands.add("report", text, as_json="what the file is made of, as JSON")
    report.add_argument(
        "-f",
        "--file",
        type=Path,
        help="where to write, - for standard output (JOB-report.html; with -o json -)",
    )


def _add_samples(commands: Commands) -> None:
    text = (
        "responses that were trained on: prompt and response with a colour by token, rewards, and "
        "why they ended"
    )
    samples = commands.add("samples", text, as_json="an object in each line")
    samples.add_argument("--step", help="responses of this step")
    samples.add_argument("--prompt", help="responses to the prompt of this number")
    order = samples.add_mutually_exclusive_group()
    for name, reward in (("worst", "least"), ("best", "greatest")):
        order.add_argument(
            f"--{name}",
            dest="order",
            action="store_const",
            const=name,
            help=f"those of the {reward} reward of the last 10 recorded steps, or of --step or "
            "--prompt",
        )
    order.add_argument(
        "--follow", action="store_true", help="new ones too, as they come, until the job is over"
    )
    samples.add_argument("--limit", default="8", metavar="N", help="at most so many (8; up to 256)")
    samples.add_argument(
        "--color",
        choices=["advantage", "mismatch"],
        default="advantage",
        help="what a token's colour shows (advantage)",
    )
    samples.set_defaults(order="newest", kept_samples=None)


if __name__ == "__main__":
    sys.exit(main())
