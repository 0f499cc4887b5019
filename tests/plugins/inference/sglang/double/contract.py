"""What `hack.sglang_contract` recorded, and whether a value keeps to it."""

import ast
import json
from pathlib import Path
from typing import Any

CONTRACT: dict[str, Any] = json.loads(Path(__file__).with_name("contract.json").read_text())
_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


class BrokenContractError(ValueError):
    """A value that the contract does not have."""


def check_record(name: str, value: Any) -> None:
    """BrokenContractError unless `value` is JSON of the record: no field unknown, none missing."""
    record = CONTRACT["records"][name]
    fields = record["fields"]
    if name.endswith(("Req", "ReqInput")):
        fields = fields | CONTRACT["records"]["BaseReq"]["fields"]
    if record["array"]:
        value = dict(zip(fields, value, strict=True))
    if not isinstance(value, dict):
        raise BrokenContractError(f"{name} is no object: {value!r:.100}")
    unknown = value.keys() - fields.keys()
    missing = {key for key, field in fields.items() if field["required"]} - value.keys()
    if unknown or missing:
        raise BrokenContractError(f"{name}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    for key, item in value.items():
        kind = fields[key]["type"]
        if not _fits(ast.parse(kind, mode="eval").body, item):
            raise BrokenContractError(f"{name}.{key} is {item!r:.100}, not {kind}")


def check_answer(route: str, value: dict[str, Any]) -> None:
    """BrokenContractError if an answer of `route` has a key that SGLang's never has."""
    unknown = value.keys() - set(CONTRACT["routes"][route]["answers"])
    if unknown:
        raise BrokenContractError(f"an answer of {route} has {sorted(unknown)}")


def check_arguments(arguments: list[str]) -> dict[str, str]:
    """Name to value; BrokenContractError for an unknown argument, or one with no value or one."""
    found: dict[str, str] = {}
    left = list(arguments)
    while left:
        name, given, value = left.pop(0).partition("=")
        if name not in CONTRACT["flags"]:
            raise BrokenContractError(f"unrecognized argument {name}")
        if CONTRACT["flags"][name] != (bool(given) or bool(left and not left[0].startswith("--"))):
            raise BrokenContractError(f"{name} has no value, or must not have one")
        if CONTRACT["flags"][name]:
            found[name] = value if given else left.pop(0)
        else:
            found[name] = ""
    return found


def _fits(kind: ast.expr, value: Any) -> bool:
    if isinstance(kind, ast.Constant):
        return value is None
    if isinstance(kind, ast.Name):
        return _fits_name(kind.id, value)
    assert isinstance(kind, ast.Subscript)
    outer = ast.unparse(kind.value)
    inner = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    if outer == "Literal":
        return value in [ast.literal_eval(item) for item in inner]
    if outer == "Optional":
        return value is None or _fits(inner[0], value)
    if outer == "Union":
        return any(_fits(item, value) for item in inner)
    if outer == "List":
        return isinstance(value, list) and all(_fits(inner[0], item) for item in value)
    return outer == "Dict" and isinstance(value, dict)


def _fits_name(name: str, value: Any) -> bool:
    if name in _PLAIN:
        return isinstance(value, _PLAIN[name]) and (name == "bool" or not isinstance(value, bool))
    if name in CONTRACT["aliases"]:
        return _fits(ast.parse(CONTRACT["aliases"][name], mode="eval").body, value)
    if name in CONTRACT["records"]:
        try:
            check_record(name, value)
        except BrokenContractError:
            return False
        return True
    return name == "Any"
