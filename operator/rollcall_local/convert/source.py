"""The settings that a user of verl wrote: a YAML file, Hydra's overrides, or a shell script."""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from rollcall_local.errors import LocalError

_PROGRAM = re.compile(r"-m\s+[\w.]+\.(main_ppo|main_dapo|fully_async_main)(?=\s|$)")
_ASSIGNMENT = re.compile(r"(?:export\s+)?(\w+)=([^\s;(]*)\s*(?:#.*)?")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
_OVERRIDE = re.compile(r"(?:\+{0,2})([A-Za-z_][\w.@/]*)=(.*)", re.DOTALL)
_SECTIONS = {"actor_rollout_ref", "algorithm", "critic", "data", "reward", "trainer"}
_HYDRA = ("defaults", "hydra")


class ConvertError(LocalError):
    """These are no settings of verl, or one of them cannot be read; the message says which."""


def read_settings(name: str, text: str, overrides: Iterable[str]) -> dict[str, Any]:
    """The settings by their dotted names; `name` of the file chooses how it is read.

    ConvertError: not YAML, not verl's, or an override that is none.
    """
    read = _of_script(name, text) if name.endswith(".sh") else dict(flat(_yaml(name, text)))
    settings = {
        key: value
        for key, value in read.items()
        if key.split(".")[0] not in _HYDRA and not key.endswith("._target_")
    }
    if not _SECTIONS & {key.split(".")[0] for key in settings}:
        raise ConvertError(
            f"{name}: there is none of verl's sections ({', '.join(sorted(_SECTIONS))}); give the "
            "configuration or the script of verl.trainer.main_ppo"
        )
    settings.update(map(_override, overrides))
    return settings


def flat(tree: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Each value of a tree of mappings with its dotted name."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", _number(value)


def _yaml(name: str, text: str) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConvertError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise ConvertError(f"{name}: not verl's: it holds no section, such as actor_rollout_ref")
    return tree


def _of_script(name: str, text: str) -> dict[str, Any]:
    """The overrides of the one call of verl's program in a shell script."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found = [(line, match) for line in lines if (match := _PROGRAM.search(line))]
    if len(found) != 1:
        raise ConvertError(
            f"{name}: {len(found)} calls of verl.trainer.main_ppo, and one is read; give its "
            "overrides as a file of YAML"
        )
    line, program = found[0]
    variables: dict[str, str] = {}
    for before in lines:
        if match := _ASSIGNMENT.fullmatch(before.strip()):
            variables[match[1]] = _substitute(match[2].strip("\"'"), variables)
    try:
        words = shlex.split(line[program.end() :], comments=True)
    except ValueError as error:
        raise ConvertError(f"{name}: cannot read the call of verl: {error}") from error
    settings: dict[str, Any] = {}
    for word in words:
        if word in {"|", ";", "&", "&&", "||"}:
            break
        if word.startswith("--config-name=") and "megatron" in word:
            settings["model_engine"] = "megatron"
        elif _OVERRIDE.fullmatch(word):
            settings.update([_override(_substitute(word, variables))])
    return settings


def _substitute(text: str, variables: Mapping[str, str]) -> str:
    """With the script's own variables in the place of their names; others stay."""

    def value(match: re.Match[str]) -> str:
        name, otherwise = match[1], match[2]
        return variables.get(name, match[0] if otherwise is None else otherwise)

    return _VARIABLE.sub(value, text)


def _override(word: str) -> tuple[str, Any]:
    match = _OVERRIDE.fullmatch(word)
    if match is None:
        raise ConvertError(f"{word!r} is no override; write section.setting=value")
    try:
        return match[1], _number(yaml.safe_load(match[2]) if match[2] else "")
    except yaml.YAMLError:
        return match[1], match[2]


def _number(value: Any) -> Any:
    """Hydra reads 1e-6 as a number, and YAML 1.1 as text."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
