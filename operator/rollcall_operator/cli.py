"""rollcall-operator run | crds | reference | plan | version.

`run` brings its heavy imports with it; the others answer without them.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcall_operator import config
from rollcall_operator.api.crd import rendered
from rollcall_operator.api.reference import reference
from rollcall_operator.plan_command import InvalidManifestError, children
from rollcall_protocol import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parser().parse_args(argv)
    if options.command == "run":
        return _run(options)
    if options.command == "crds":
        return _generated(rendered(), options)
    if options.command == "reference":
        return _generated({"reference.md": reference()}, options)
    if options.command == "plan":
        return _plan(options.filename, namespace=options.namespace)
    print(__version__)
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    whole = argparse.ArgumentParser(
        prog="rollcall-operator",
        description="Kubernetes operator for reinforcement-learning jobs with elastic rollouts.",
    )
    commands = whole.add_subparsers(dest="command", required=True)
    config.add_arguments(commands.add_parser("run", help="run the operator"))
    for command, what, folder in (
        ("crds", "custom resource definitions", Path("crds")),
        ("reference", "reference of their fields, docs/reference.md", Path("docs")),
    ):
        generated = commands.add_parser(command, help=f"print, check or write the {what}")
        generated.add_argument(
            "--check",
            action="store_true",
            help="exit with 1 if the files in --dir differ from the models",
        )
        generated.add_argument("--write", action="store_true", help="write the files into --dir")
        generated.add_argument(
            "--dir", type=Path, default=folder, help=f"directory of the files (default: {folder})"
        )
    plan = commands.add_parser(
        "plan",
        help="print the objects that the operator would create for a manifest, without a cluster",
    )
    plan.add_argument(
        "-f",
        "--filename",
        required=True,
        help="YAML file with RLJobs and RolloutPools, or - for standard input",
    )
    plan.add_argument(
        "-n",
        "--namespace",
        default="default",
        help="namespace of manifests that set none (default: default)",
    )
    commands.add_parser("version", help="print the version")
    return whole


def _run(options: argparse.Namespace) -> int:
    try:
        settings = config.from_arguments(options)
    except config.SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    from rollcall_operator import app  # noqa: PLC0415 - kopf and the client, for `run` alone

    return app.run(settings)


def _generated(files: dict[str, str], options: argparse.Namespace) -> int:
    """Print the files, write them, or compare them with those that are there."""
    folder: Path = options.dir
    if options.write:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    elif options.check:
        return _check(folder, files, command=options.command)
    else:
        print("---\n".join(files.values()), end="")
    return 0


def _check(folder: Path, files: dict[str, str], *, command: str) -> int:
    """Exit code 1 and the first lines of a difference when a file is not as generated."""
    stale = False
    for name, text in files.items():
        path = folder / name
        have = path.read_text(encoding="utf-8") if path.exists() else ""
        if have == text:
            continue
        stale = True
        lines = difflib.unified_diff(
            have.splitlines(), text.splitlines(), str(path), "generated", lineterm="", n=1
        )
        print("\n".join(list(lines)[:40]), file=sys.stderr)
    if stale:
        print(
            f"{folder} differs from the models; run `rollcall-operator {command} --write`",
            file=sys.stderr,
        )
    return int(stale)


def _plan(filename: str, *, namespace: str) -> int:
    try:
        text = sys.stdin.read() if filename == "-" else Path(filename).read_text(encoding="utf-8")
        print(children(text, namespace=namespace), end="")
    except (InvalidManifestError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
