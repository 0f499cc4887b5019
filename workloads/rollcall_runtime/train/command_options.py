"""Arguments that several subcommands of `rollcall-train` share, and what they mean."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rollcall_protocol.data_config import DataConfig, DataSource, TooLong
from rollcall_protocol.job_config import EngineRef

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = "NAME[,KEY=VALUE...]"


def source(text: str) -> DataSource:
    """A source of rows: its name, and fields of DataSource such as `weight=3,split=test`."""
    name, *settings = text.split(",")
    values: dict[str, Any] = {}
    known = [item.name for item in fields(DataSource) if item.name not in ("name", "config")]
    config: dict[str, Any] = {}
    for setting_text in settings:
        key, equals, value = setting_text.partition("=")
        if equals and key.startswith("config."):
            inner, parsed = setting(setting_text.removeprefix("config."))
            config[inner] = parsed
            continue
        if not equals or key not in known:
            problem = f"{setting_text!r} is not KEY=VALUE with one of {', '.join(known)}, config.*"
            raise argparse.ArgumentTypeError(problem)
        try:
            values[key] = _READERS[key](value) if key in _READERS else value
        except (KeyError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{setting_text!r}: {error}") from error
    try:
        return DataSource(name, config=config, **values)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_READERS: dict[str, Callable[[str], Any]] = {
    "weight": int,
    "chat": lambda text: {"true": True, "false": False}[text],
    "columns": lambda text: tuple(text.split("+")),
}


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE as in spec.trainer.engine.config."""
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def at_least(least: int) -> Any:
    """A whole number from `least` on."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return value

    return number


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, which every command requires that opens a model."""
    parser.add_argument(
        "--model", required=True, metavar="M", help="builtin:..., a directory, or an id of the hub"
    )


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sources and the options that `data_config` reads."""
    parser.add_argument(
        "source",
        nargs="+",
        type=source,
        metavar=_SOURCE,
        help="a .jsonl, .json, .csv or .parquet file, a directory or an id of datasets, or "
        "builtin:reasoning-gym/<data set>; keys: weight, subset, split, column, columns (joined by "
        "+), template, chat (true), system, config.<setting>",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the order (default: 0)")
    parser.add_argument(
        "--max-tokens",
        type=at_least(0),
        default=0,
        metavar="N",
        help="of a row (default: what fits into the model's context)",
    )
    parser.add_argument(
        "--too-long",
        choices=[policy.value for policy in TooLong],
        default=TooLong.FAIL.value,
        help="what happens to longer rows (default: Fail)",
    )


def data_config(options: argparse.Namespace) -> DataConfig:
    """The sources on the command line."""
    return DataConfig(
        sources=tuple(options.source),
        seed=options.seed,
        max_tokens=options.max_tokens,
        too_long=TooLong(options.too_long),
    )


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `engine_ref` reads."""
    parser.add_argument(
        "--engine", default="fsdp2", metavar="E", help="the training engine (default: fsdp2)"
    )
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting as in spec.trainer.engine.config; repeatable",
    )


def engine_ref(options: argparse.Namespace) -> EngineRef:
    """The engine on the command line."""
    return EngineRef(options.engine, dict(options.set))
