"""Settings that may have one value alone: the one that says what happens anyway."""

from collections.abc import Mapping
from typing import Any

from rollcall_plugins.front.openai.bad_request import BadRequestError


def check_neutral(
    body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], *, of: str = ""
) -> None:
    """BadRequestError for a setting of `body` with another value than those in `neutral`.

    null is one everywhere, also within an object. `of`: what the settings belong to.
    """
    for name, values in neutral.items():
        given = body.get(name)
        if isinstance(given, dict):
            given = {key: value for key, value in given.items() if value is not None}
        if given is not None and given not in values:
            problem = f"{name} is not supported{of}, but for its default; remove it"
            raise BadRequestError(problem, name)
