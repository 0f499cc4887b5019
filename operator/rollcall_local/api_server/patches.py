"""What a patch makes of an object; nothing here changes its arguments.

Lists are replaced whole, but for those that several writers share: conditions, by their type, in a
strategic merge patch. Kubernetes merges others too, by keys in the schema of each kind; here each
object has one writer, so that the results are the same.
"""

from typing import Any

from rollcall_local.api_server.errors import MalformedRequestError

Object = dict[str, Any]

_MERGED_BY = {"conditions": "type"}


def merge(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, inner in patch.items():
        if inner is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), inner)
    return merged


def strategic_merge(value: Any, patch: Any) -> Any:
    """A merge patch in which entries of a shared list replace those of the same key.

    MalformedRequestError for an entry without its key, and for directives such as `$patch`.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, inner in patch.items():
        if name.startswith("$"):
            raise MalformedRequestError(
                f"{name}: not known here; use `kubectl apply --server-side`"
            )
        if inner is None:
            merged.pop(name, None)
        elif name in _MERGED_BY and isinstance(inner, list):
            merged[name] = _merged_list(merged.get(name) or [], inner, _MERGED_BY[name])
        else:
            merged[name] = strategic_merge(merged.get(name), inner)
    return merged


def _merged_list(before: Any, patch: list[Any], key: str) -> list[Object]:
    entries: dict[str, Object] = {}
    for found in (before, patch):
        if not isinstance(found, list):
            raise MalformedRequestError(f"{found!r} is no list of maps with a {key}")
        for entry in found:
            if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                raise MalformedRequestError(f"{entry!r}: each entry of this list needs a {key}")
            entries[entry[key]] = strategic_merge(entries.get(entry[key]), entry)
    return list(entries.values())
