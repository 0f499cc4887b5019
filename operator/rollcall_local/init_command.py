"""`rollcall init`: writes the folder of a job of one's own."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcall_local.errors import LocalError
from rollcall_local.other_names import OTHER_TRAINERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parser().parse_args(arguments)
    from rollcall_local.starter import starter_files, write_files  # noqa: PLC0415 - not for --help

    folder: Path = options.folder
    name = options.name or folder.absolute().name
    other = OTHER_TRAINERS.get(options.come_from)
    try:
        files = starter_files(name, other)
        write_files(folder, files)
    except (LocalError, OSError) as error:
        print(f"rollcall init: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {', '.join(files)}")
    print(f"look at it with `rollcall check -k {folder}`, then `rollcall local run -k {folder}`")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command with its options."""
    command = argparse.ArgumentParser(
        prog="rollcall init",
        description="Writes a folder with a job of your own to begin with: manifest, reward, "
        "prompts, and a test of the reward. It runs as it is. Nothing is overwritten.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="the folder to make")
    command.add_argument(
        "--from",
        dest="come_from",
        choices=list(OTHER_TRAINERS),
        help="comments say which settings of this trainer each field replaces (trl: GRPOTrainer); "
        "sft writes a supervised job, with the names of TRL's SFTTrainer",
    )
    command.add_argument("--name", help="of the job (default: that of the folder)")
    return command


if __name__ == "__main__":
    sys.exit(main())
