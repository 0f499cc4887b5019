"""The form that a request wants its answer in: any text, or JSON of a schema."""

import json
from collections.abc import Mapping
from typing import Any

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_protocol.wire.generation import MAX_SCHEMA

FIELD = "response_format"
_OBJECT = {"type": "object"}


def read_response_format(fields: Mapping[str, Any]) -> str:
    """The JSON schema that the answer must fit, as text; empty for any text. BadRequestError."""
    given = fields.get(FIELD)
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return ""
    if kind == "json_object":
        return json.dumps(_OBJECT)
    if kind != "json_schema":
        problem = f"{FIELD}.type must be text, json_object or json_schema"
        raise BadRequestError(problem, FIELD)
    named = given.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise BadRequestError(f"{FIELD}.json_schema.schema must be an object", FIELD)
    try:
        written = json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{FIELD}.json_schema.schema is no JSON: {error}", FIELD) from error
    if len(written) > MAX_SCHEMA:
        problem = f"has {len(written)} characters, of {MAX_SCHEMA} that it may have: shorten it"
        raise BadRequestError(f"{FIELD}.json_schema.schema {problem}", FIELD)
    return written
