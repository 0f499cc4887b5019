"""`rollcall-train`: lists training engines, shows data, exports checkpoints, trains on answers.

torch is imported only where it is needed, so that help and usage errors appear at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_protocol import __version__
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.train.command_options import (
    add_data_arguments,
    add_engine_arguments,
    add_model_argument,
    at_least,
    data_config,
    engine_ref,
)
from rollcall_runtime.train.trainer_plugin import trainer_plugins
from rollcall_runtime.worker.command_output import own_output
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.memory_errors import TRAINER_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_runtime.train.engine_list import TrainEngineInfo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the result goes to standard output, everything else to standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    with own_output() as output:
        try:
            if options.plugin is not None:
                return int(options.plugin.run_command(options, given, output))
            output.write(options.run(options) + "\n")
        except SpecError as error:
            return _give_up(error, ExitCode.BAD_CONFIG)
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            explained = TRAINER_MEMORY.explain(error)
            if explained is not None:
                return _give_up(explained, ExitCode.OUT_OF_MEMORY)
            return _give_up(error, ExitCode.FAILED)
    return ExitCode.OK


def _give_up(error: Exception, code: ExitCode) -> int:
    sys.stderr.write(f"rollcall-train: {error}\n")
    return code


def _engines(options: argparse.Namespace) -> str:
    from rollcall_runtime.train.engine_list import list_engines  # noqa: PLC0415 - imports torch

    found = list_engines()
    if options.json:
        return json.dumps([asdict(info) for info in found])
    return "\n".join(map(_engine_text, found))


def _engine_text(info: TrainEngineInfo) -> str:
    state = "available" if info.available else f"not available: {info.reason}"
    version = f" {info.version}" if info.version else ""
    lines = [f"{info.name}{version} ({info.origin}): {state}"]
    known = {"devices": info.devices, "heads": info.heads, "settings": info.settings}
    lines += [f"  {name}: {', '.join(values)}" for name, values in known.items() if values]
    return "\n".join(lines)


def _data(options: argparse.Namespace) -> str:
    # These import torch.
    from rollcall_runtime.data.model_input import ModelInput  # noqa: PLC0415
    from rollcall_runtime.models.open_model import open_model  # noqa: PLC0415
    from rollcall_runtime.train import data_preview  # noqa: PLC0415

    model = ModelInput.of(open_model(options.model))
    data = data_config(options)
    if options.supervised:
        rows = data_preview.preview_supervised(data, model, count=options.head)
    else:
        rows = data_preview.preview_prompts(data, model, count=options.head)
    if options.json:
        return "\n".join(json.dumps(row.as_json()) for row in rows)
    return "\n".join(map(data_preview.as_text, rows))


def _export(options: argparse.Namespace) -> str:
    # Imports torch.
    from rollcall_runtime.train.checkpoint_export import export_checkpoint  # noqa: PLC0415

    exported = export_checkpoint(
        options.checkpoint,
        options.out,
        model=options.model,
        engine=engine_ref(options),
        precision=options.precision,
    )
    return f"{options.out}: the model of {exported}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "rollcall-train",
        description="Lists training engines, shows data, exports checkpoints, trains on answers.",
    )
    parser.add_argument("--version", action="version", version=f"rollcall {__version__}")
    parser.set_defaults(plugin=None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    engines = commands.add_parser(
        "engines", help="list the training engines, and why one cannot be used here"
    )
    engines.add_argument("--json", action="store_true", help="print a JSON array")
    engines.set_defaults(run=_engines)

    data = commands.add_parser("data", help="show the first rows as the model will see them")
    add_model_argument(data)
    add_data_arguments(data)
    data.add_argument(
        "--head", type=at_least(1), default=3, metavar="N", help="how many (default: 3)"
    )
    data.add_argument(
        "--supervised", action="store_true", help="as `sft` reads them, with what is learnt"
    )
    data.add_argument("--json", action="store_true", help="print a JSON object for each row")
    data.set_defaults(run=_data)

    export = commands.add_parser("export", help="write the model of a checkpoint as a directory")
    export.add_argument("checkpoint", type=Path, help="a checkpoint, or a folder of several")
    export.add_argument("out", type=Path, help="the directory to make")
    add_model_argument(export)
    add_engine_arguments(export)
    export.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="(default: fp32)"
    )
    export.set_defaults(run=_export)

    for known in trainer_plugins.survey():
        if known.found is not None:
            plugin = known.found()
            own = commands.add_parser(plugin.command, help=plugin.summary)
            plugin.add_arguments(own)
            own.set_defaults(plugin=plugin)
    return parser
