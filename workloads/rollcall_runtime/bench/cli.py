"""`rollcall-sync`: lists the weight-sync engines and measures their throughput on this machine.

torch is imported only where it is needed, so that help and usage errors appear at once.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollcall_protocol import __version__
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.bench.host import available_memory, scratch_folder
from rollcall_runtime.worker.command_output import own_output
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.bench.throughput import BenchCase

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
_COLUMNS = ("name", "kind", "devices", "available", "version", "reason")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the result goes to standard output, everything else to standard error."""
    options = _parser().parse_args(arguments)
    with own_output() as output:
        try:
            result: tuple[str, int] = options.run(options)
        except SpecError as error:
            return _give_up(str(error), ExitCode.BAD_CONFIG)
        except (OSError, ValueError, RuntimeError) as error:
            return _give_up(str(error), ExitCode.FAILED)
        text, code = result
        output.write(text + "\n")
    return code


def _give_up(message: str, code: ExitCode) -> int:
    sys.stderr.write(f"rollcall-sync: {message}\n")
    return code


# --- engines ------------------------------------------------------------------------------------


def _engines(options: argparse.Namespace) -> tuple[str, int]:
    from rollcall_runtime.sync.registry import engines  # noqa: PLC0415 - imports torch

    rows = [{name: asdict(found)[name] for name in _COLUMNS} for found in engines()]
    return (json.dumps(rows) if options.json else _table(rows)), ExitCode.OK


def _table(rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return ",".join(value) or "?"
        return {None: "-", True: "yes", False: "no"}.get(value, str(value))

    lines = [[name.upper() for name in _COLUMNS]]
    lines += [[cell(row[name]) for name in _COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


# --- bench --------------------------------------------------------------------------------------


def _bench(options: argparse.Namespace) -> tuple[str, int]:
    from rollcall_runtime.bench.suite import run  # noqa: PLC0415 - imports torch

    if options.kill_member and options.receivers < 2:
        raise ValueError(
            "--kill-member needs at least two --receivers: one is killed, one survives"
        )
    load = bench_case(
        options, engine=options.engine, receivers=options.receivers, nbytes=options.size
    )
    if load.memory > available_memory():
        raise ValueError(
            f"{load.receivers} receivers of {load.nbytes} bytes need about {load.memory >> 20} MiB "
            f"of memory, and {available_memory() >> 20} MiB are free; choose a smaller --size"
        )
    with scratch_folder() as folder:
        result, details = run(
            load,
            folder,
            kill_member=options.kill_member,
            naive=options.details,
            parts=options.shard,
        )
    if options.details:
        result["details"] = details
    if options.json:
        text = json.dumps(result)
    else:
        text = "\n".join(f"{name}: {value}" for name, value in result.items())
    return text, (ExitCode.OK if result["verified"] else ExitCode.FAILED)


def bench_case(
    options: argparse.Namespace, *, engine: str, receivers: int, nbytes: int
) -> "BenchCase":
    from rollcall_runtime.bench.throughput import BenchCase  # noqa: PLC0415 - imports torch

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


# --- arguments ----------------------------------------------------------------------------------


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
        "rollcall-sync", description="Lists weight-sync engines and measures them on this machine."
    )
    parser.add_argument("--version", action="version", version=f"rollcall {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    engines = commands.add_parser(
        "engines", help="list the engines, and why an engine cannot run here"
    )
    engines.add_argument("--json", action="store_true", help="print a JSON array")
    engines.set_defaults(run=_engines)

    bench = commands.add_parser(
        "bench",
        help="measure one engine, with bare TCP and memcpy in the same run",
        epilog="Speeds are in GB (1e9 bytes) per second, medians of all rounds. snapshot_seconds "
        "is how long the trainer waits for a snapshot; blocking_seconds how long it would wait if "
        "it sent by itself: copy, digests, and the send until all receivers have verified.",
    )
    bench.add_argument("--engine", required=True, metavar="E", help="the engine's name, or auto")
    bench.add_argument("--receivers", type=positive, default=1, metavar="N")
    bench.add_argument(
        "--size",
        type=size,
        default=size("512Mi"),
        metavar="S",
        help="bytes of weights (default: 512Mi)",
    )
    bench.add_argument("--json", action="store_true", help="print one line of JSON")
    bench.add_argument(
        "--kill-member",
        action="store_true",
        help="also kill a receiver in mid-transfer, R times, and time the recovery",
    )
    bench.add_argument(
        "--shard",
        type=positive,
        default=0,
        metavar="K",
        help="also measure receivers that each need one of K parts of every tensor's rows",
    )
    bench.add_argument(
        "--details",
        action="store_true",
        help="add the seconds of every round, and of a kill that only the engine detects",
    )
    add_case_arguments(bench)
    bench.set_defaults(run=_bench)
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
