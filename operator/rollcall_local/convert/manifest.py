"""An RLJob as text with verl's names as comments, and what is wrong with it."""

import re
from typing import Any

import yaml

from rollcall_local.other_names import VERL, annotated
from rollcall_local.starter import lines_of_fields
from rollcall_operator.plan.manifest_check import check_manifest

_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_HEAD = (
    "# By `rollcall convert verl`. `rollcall check` says what it lacks; then replace the image.\n"
)


class _Quoting(yaml.SafeDumper):
    """Quotes texts that are numbers: 1e-06 is text in YAML 1.1, and none to Kubernetes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Quoting.add_representer(str, _text)


def written(body: dict[str, Any]) -> str:
    """The manifest with a comment above each field that verl has another name for."""
    text = yaml.dump(body, Dumper=_Quoting, sort_keys=False, width=100, allow_unicode=True)
    return _HEAD + annotated(text, VERL, lines_of_fields(text))


def mistakes(body: dict[str, Any]) -> tuple[str, ...]:
    """A line for each, with its field."""
    metadata = {"namespace": "default", **body["metadata"]}
    return check_manifest({**body, "metadata": metadata}).errors
