"""The HTTP sessions of the operator: what answers is a user's image, or may be one."""

from typing import Any

import aiohttp

from rollcall_protocol.wire import plain_answers


def session_options(*, hands_on_redirects: bool = False) -> dict[str, Any]:
    """As those of `plain_answers`, and no cookie is kept."""
    plain = plain_answers.session_options(hands_on_redirects=hands_on_redirects)
    return {**plain, "cookie_jar": aiohttp.DummyCookieJar()}


def open_session(*, hands_on_redirects: bool = False, **options: Any) -> aiohttp.ClientSession:
    """A session with `session_options`, and with `options` of aiohttp's beside them."""
    plain = session_options(hands_on_redirects=hands_on_redirects)
    plain["middlewares"] += tuple(options.pop("middlewares", ()))
    return aiohttp.ClientSession(**plain, **options)
