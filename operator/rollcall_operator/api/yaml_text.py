"""YAML out, so that every parser reads it back the same."""

import re
from typing import Any

import yaml

_NUMBER_LIKE = re.compile(r"[-+.]?[0-9]")


class _Dumper(yaml.SafeDumper):
    """Quotes strings such as "1e-3", which PyYAML reads as text and Kubernetes as a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write equal objects out in full."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NUMBER_LIKE.match(text) and "\n" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def dump(*documents: Any) -> str:
    """The documents as YAML, keys in their own order."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        width=100,
        allow_unicode=True,
        explicit_start=len(documents) > 1,
    )
