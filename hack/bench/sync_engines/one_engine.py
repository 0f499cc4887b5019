"""Measures the throughput of one weight-sync engine on this machine, and prints the figures.

python -m hack.bench.sync_engines.one_engine --engine gloo --receivers 2 --size 512Mi
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.bench.sync_engines.suite import run
from hack.bench.sync_engines.throughput import BenchCase
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.worker.command_output import own_output
from rollcall_runtime.worker.errors import SpecError

_SIZE = re.compile(r"([0-9]+)(Ki|Mi|Gi|k|M|G)?")
_UNITS = {
    None: 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}
_BUCKET = "64Mi"  # the default of spec.weightSync.bucketSize


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the figures go to standard output, everything else to standard error."""
    options = _parser().parse_args(arguments)
    with own_output() as output:
        try:
            result = _measured(options)
        except (SpecError, OSError, ValueError, RuntimeError) as error:
            sys.stderr.write(f"bench: {error}\n")
            return ExitCode.BAD_CONFIG if isinstance(error, SpecError) else ExitCode.FAILED
        if options.json:
            output.write(json.dumps(result) + "\n")
        else:
            output.writelines(f"{name}: {value}\n" for name, value in result.items())
    return ExitCode.OK if result["verified"] else ExitCode.FAILED


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    if options.kill_member and options.receivers < 2:
        raise ValueError(
            "--kill-member needs at least two --receivers: one is killed, one survives"
        )
    case = bench_case(
        options, engine=options.engine, receivers=options.receivers, nbytes=options.size
    )
    with tempfile.TemporaryDirectory(prefix="rollcall-") as folder:
        result, details = run(
            case,
            Path(folder),
            kill_member=options.kill_member,
            naive=options.details,
            parts=options.shard,
            checks=options.checks,
        )
    return result | {"details": details} if options.details else result


def bench_case(
    options: argparse.Namespace, *, engine: str, receivers: int, nbytes: int
) -> BenchCase:
    """The case that the arguments of `add_case_arguments` describe."""
    config = {key: value for name, key, value in options.config if name in {"", engine}}
    return BenchCase(
        engine=engine,
        receivers=receivers,
        nbytes=nbytes,
        bucket_bytes=options.bucket_size,
        rounds=options.rounds,
        senders=options.senders,
        config=config,
        timeout=options.timeout,
        verbose=options.verbose,
        staging=options.staging,
    )


def size(text: str) -> int:
    """Bytes of a quantity such as 512Mi; an even number, because weights are bf16."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it like 512Mi")
    amount = int(match[1]) * _UNITS[match[2]]
    if amount < 2 or amount % 2:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an even number of bytes, 2 or more")
    return amount


def setting(text: str) -> tuple[str, str, Any]:
    """Engine (empty for all), key and value of [ENGINE.]KEY=VALUE; values as in an RLJob."""
    path, equals, value = text.partition("=")
    engine, _, key = path.rpartition(".")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE or ENGINE.KEY=VALUE")
    try:
        return engine, key, json.loads(value)
    except ValueError:
        return engine, key, value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m hack.bench.sync_engines.one_engine",
        description="Measures one engine, with bare TCP and memcpy in the same run.",
        epilog="Speeds are in GB (1e9 bytes) per second, medians of all rounds. snapshot_seconds "
        "is how long the trainer waits for a snapshot; blocking_seconds how long it would wait if "
        "it sent by itself: copy, digests, and the send until all receivers have verified.",
    )
    parser.add_argument("--engine", required=True, metavar="E", help="the engine's name, or auto")
    parser.add_argument("--receivers", type=positive, default=1, metavar="N")
    parser.add_argument(
        "--size",
        type=size,
        default=size("512Mi"),
        metavar="S",
        help="bytes of weights (default: 512Mi)",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--kill-member",
        action="store_true",
        help="also kill a receiver in mid-transfer, R times, and time the recovery",
    )
    parser.add_argument(
        "--shard",
        type=positive,
        default=0,
        metavar="K",
        help="also measure receivers that each need one of K parts of every tensor's rows",
    )
    parser.add_argument(
        "--checks",
        action="store_true",
        help="also measure with digests, with checksums and without checks, in turn",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="add the seconds of every round, and of a kill that only the engine detects",
    )
    add_case_arguments(parser)
    return parser


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that `bench_case` reads."""
    parser.add_argument("--senders", type=positive, default=1, metavar="M")
    parser.add_argument("--rounds", type=positive, default=5, metavar="R")
    parser.add_argument(
        "--bucket-size",
        type=size,
        default=size(_BUCKET),
        metavar="S",
        help=f"bytes of a bucket (default: {_BUCKET})",
    )
    parser.add_argument(
        "--config",
        type=setting,
        action="append",
        default=[],
        metavar="[ENGINE.]KEY=VALUE",
        help="a setting as in spec.weightSync.config; {folder} is a temporary folder; repeatable",
    )
    parser.add_argument(
        "--staging",
        choices=["host", "device"],
        default="host",
        help="memory for snapshots and, if the engine supports it, for received weights",
    )
    parser.add_argument(
        "--timeout", type=float, default=90.0, help="seconds that a transfer may take (default: 90)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show the logs of the member processes"
    )


if __name__ == "__main__":
    sys.exit(main())
