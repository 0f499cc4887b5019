"""API fields made from settings that the protocol declares with their ranges and docstrings."""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import Field, create_model

from rollcall_operator.api.rules import Model
from rollcall_operator.api.scalars import Amount, Cap, Share
from rollcall_protocol.algorithm_settings import AMOUNT, CAP, SHARE
from rollcall_protocol.setting_ranges import OneOf

_DECIMALS = {SHARE: Share, AMOUNT: Amount, CAP: Cap}


def changes_of(settings: type[Any]) -> type[Model]:
    """A model with the fields of the dataclass `settings`, any of which may be left out."""
    kinds = get_type_hints(settings, include_extras=True)
    fields: dict[str, Any] = {
        name: (_api_type(kinds[name]) | None, Field(default=None, description=text))
        for name, text in docstrings(settings).items()
    }
    return create_model(settings.__name__, __base__=Model, **fields)


def _api_type(kind: Any) -> Any:
    """A bool as it is, a text as its choices, a float as a decimal string, an int by its bounds."""
    if kind is bool:
        return kind
    plain, allowed = get_args(kind)
    if isinstance(allowed, OneOf):
        return Literal[allowed.values]
    if plain is float:
        return _DECIMALS[allowed]
    return Annotated[plain, Field(ge=allowed.low, le=allowed.high)]


def docstrings(settings: type[Any]) -> dict[str, str]:
    """The docstring behind each field, as written in the source."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(settings)))):
        for lines in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
            match lines:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = text
    return found
