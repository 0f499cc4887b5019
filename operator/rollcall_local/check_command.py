"""`rollcall check`: says all that is wrong with a job, without starting it."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rollcall_cli.visible_text import visible_lines
from rollcall_local.errors import LocalError
from rollcall_local.manifest_options import add_manifest_options, given_images, given_manifests

_EXIT_OK, _EXIT_WRONG = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns 1 if something is wrong."""
    options = parser().parse_args(arguments)
    try:
        return _check(options)
    except KeyboardInterrupt:
        return 130
    except (LocalError, OSError, ValueError) as error:
        print(f"rollcall check: {error}", file=sys.stderr)
        return _EXIT_WRONG


def parser() -> argparse.ArgumentParser:
    """The command with its options."""
    command = argparse.ArgumentParser(
        prog="rollcall check",
        description="Says all that is wrong with RLJobs, and what is right, without starting them: "
        "manifests, models, the first rows of the data, the reward of some answers, and memory.",
    )
    add_manifest_options(command)
    command.add_argument(
        "--manifests-only", action="store_true", help="look into no container: answers at once"
    )
    command.add_argument("-o", "--output", choices=["json"], help="an object for each line")
    return command


def _check(options: argparse.Namespace) -> int:
    from rollcall_local.machine_check import read_here  # noqa: PLC0415 - not for --help
    from rollcall_local.manifests import ManifestError  # noqa: PLC0415

    files, folders = given_manifests(options)
    images = given_images(options)
    say = _Lines(options.output == "json")
    try:
        manifests = read_here(files, folders, images=images)
    except ManifestError as error:
        for line in str(error).splitlines():
            say.line("", line, right=False)
        return _EXIT_WRONG
    for body in manifests.objects:
        say.line(f"{body['kind']} {body['metadata']['name']}", "the manifest is right", right=True)
    if not options.manifests_only:
        from rollcall_local.job_check import check_containers  # noqa: PLC0415 - plans children

        for found in check_containers(manifests, images):
            say.line(found.about, found.text, right=found.right, warning=found.warning)
    return _EXIT_WRONG if say.wrong else _EXIT_OK


class _Lines:
    """Prints findings as they come."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.wrong = 0

    def line(self, about: str, text: str, *, right: bool, warning: bool = False) -> None:
        self.wrong += not right
        if self._as_json:
            found: dict[str, Any] = {"about": about, "text": text, "right": right}
            print(json.dumps(found | ({"warning": True} if warning else {})), flush=True)
            return
        kind = "warning" if warning else "right" if right else "WRONG"
        words = ": ".join(filter(None, (kind, about, text)))
        print(visible_lines(words), flush=True)


if __name__ == "__main__":
    sys.exit(main())
