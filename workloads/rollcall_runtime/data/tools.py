"""The tools that a chat may call: the column `tools`, which the chat template writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.row_values import json_text
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOOLS = "tools"

Tools = list[dict[str, Any]]


def tools_of(row: Mapping[str, Any], *, place: str, field: str) -> Tools | None:
    """The row's tools: a list of JSON schemas, or the same as text; None if it has none.

    SpecError at `field` for anything else.
    """
    given = row.get(TOOLS)
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(given or "null")
        except (ValueError, RecursionError) as error:
            raise SpecError(field, f"{place}: {TOOLS} is not JSON: {error}; correct it") from error
    if not found and found in (None, []):
        return None
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        problem = f"{place}: {TOOLS} holds {given!r:.60}"
        raise SpecError(field, f"{problem}; wants a list of functions by JSON schema, or null")
    json_text({TOOLS: found}, place=place, field=field)
    return found
