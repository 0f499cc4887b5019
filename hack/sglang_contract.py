"""Records what SGLang's sources say of the interface that the engine `sglang` uses.

    python -m hack.sglang_contract DIRECTORY > tests/plugins/inference/sglang/double/contract.json

DIRECTORY is one that has SGLang's package `sglang`: that of an installed one, or an unpacked wheel.
Nothing of it is imported. `functions` are digests of code whose behaviour the engine counts on: if
one differs after a new release was recorded, read it again.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROUTES = (
    "/generate",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/update_weights_from_disk",
    "/weights_checker",
    "/model_info",
    "/server_info",
)
RECORDS = {
    "api/v1/api_types.py": (
        "GenerateRequest",
        "SamplingParams",
        "GenerateResponse",
        "GenerateMetaInfo",
        "LogprobEntry",
        "WeightVersionSpan",
        "FinishStop",
        "FinishLength",
        "FinishAbort",
        "GenerateStreamError",
        "ErrorBody",
    ),
    "srt/managers/io_struct.py": (
        "BaseReq",
        "AbortReq",
        "PauseGenerationReqInput",
        "ContinueGenerationReqInput",
        "UpdateWeightFromDiskReqInput",
        "CheckWeightsReqInput",
        "ChecksumInfo",
    ),
}
FUNCTIONS = {
    "srt/managers/scheduler.py": ("pause_generation", "record_weight_version_change"),
    "srt/managers/tokenizer_manager.py": ("pause_generation", "update_weights_from_disk"),
    "srt/managers/scheduler_components/weight_updater.py": (
        "update_weights_from_disk",
        "flush_cache_after_weight_update",
    ),
    "srt/model_executor/model_runner_components/weight_updater.py": ("update_weights_from_disk",),
    "srt/utils/weight_versions.py": (
        "record_weight_version_events",
        "compute_weight_version_spans",
        "add_weight_versions_to_meta_info",
    ),
}
VARIABLES = {"srt/layers/sampler.py": ("SGLANG_RETURN_ORIGINAL_LOGPROB",)}


def contract(package: Path) -> dict[str, Any]:
    """What is recorded of `package`. KeyError, OSError if it lacks something."""
    (release,) = re.findall(r"version = '([^']+)'", (package / "_version.py").read_text())
    records: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for file, names in RECORDS.items():
        tree = _tree(package / file)
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        records |= {name: _record(classes[name]) for name in names}
        aliases |= dict(_aliases(tree))
    return {
        "release": release,
        "routes": _routes(_tree(package / "srt/entrypoints/http_server.py")),
        "records": records,
        "aliases": aliases,
        "flags": _flags(package),
        "variables": [
            name for file, names in VARIABLES.items() for name in _named(package / file, names)
        ],
        "functions": {
            f"{file}:{name}": _digest(package / file, name)
            for file, names in FUNCTIONS.items()
            for name in names
        },
    }


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _record(node: ast.ClassDef) -> dict[str, Any]:
    fields = {
        item.target.id: {"type": ast.unparse(item.annotation), "required": item.value is None}
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return {"fields": fields, "array": "JSON positional array" in (ast.get_docstring(node) or "")}


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            (target,) = node.targets
            if isinstance(target, ast.Name):
                yield target.id, ast.unparse(node.value)


def _routes(tree: ast.Module) -> dict[str, Any]:
    """Methods, the record of the body, and all keys that answers may have."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and (route := _route(call)) in ROUTES:
                found[route] = {
                    "methods": _methods(call),
                    "body": next(filter(None, map(_body, node.args.args)), None),
                    "answers": sorted(_keys(node)),
                }
    return {route: found[route] for route in ROUTES}


def _route(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _methods(call: ast.Call) -> list[str]:
    for keyword in call.keywords:
        if keyword.arg == "methods":
            return list(ast.literal_eval(keyword.value))
    return [ast.unparse(call.func).rpartition(".")[2].upper()]


def _body(argument: ast.arg) -> str | None:
    """The record that the argument `obj` of a route is."""
    if argument.arg != "obj" or argument.annotation is None:
        return None
    names: list[str] = re.findall(r"\w+", ast.unparse(argument.annotation))
    return next(name for name in names if name not in {"Annotated", "Optional"})


def _keys(node: ast.AsyncFunctionDef) -> set[str]:
    """Of literal dictionaries, and of items that are added to one."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Dict):
            found |= {key.value for key in item.keys if isinstance(key, ast.Constant)}
        if isinstance(item, ast.Subscript) and isinstance(item.ctx, ast.Store):
            found |= {item.slice.value} if isinstance(item.slice, ast.Constant) else set()
    return {str(key) for key in found}


def _flags(package: Path) -> dict[str, bool]:
    """Names of arguments, and whether a value follows."""
    found = {"--config": True}
    for path in sorted((package / "srt/arg_groups/fields").glob("*.py")):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                annotation = ast.unparse(node.annotation)
                aliases = re.findall(r"aliases=\[([^\]]*)\]", annotation)
                names = ["--" + node.target.id.replace("_", "-")]
                names += re.findall(r"'(--[^']+)'", " ".join(aliases))
                found |= dict.fromkeys(names, not annotation.startswith("A[bool"))
    return found


def _named(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    text = path.read_text(encoding="utf-8")
    for name in names:
        if name not in text:
            raise KeyError(name)
    return names


def _digest(path: Path, name: str) -> str:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            source = ast.get_source_segment(text, node) or ""
            return hashlib.sha256(source.encode()).hexdigest()[:16]
    raise KeyError(name)


if __name__ == "__main__":
    json.dump(contract(Path(sys.argv[1]) / "sglang"), sys.stdout, indent=1)
    print()
