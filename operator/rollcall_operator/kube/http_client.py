"""The HTTP sessions of the operator: what answers is a user's image, or may be one."""

from typing import Any

import aiohttp

from rollcall_protocol.wire.plain_answers import refuse_encoded, refuse_redirect


def session_options(*, hands_on_redirects: bool = False) -> dict[str, Any]:
    """Those of a session that follows no redirect, decompresses nothing and keeps no cookie.

    aiohttp.ClientOSError for such an answer. With `hands_on_redirects` they are answers as others:
    each request then says `allow_redirects=False`.
    """
    refused = (refuse_encoded,) if hands_on_redirects else (refuse_redirect, refuse_encoded)
    return {
        "middlewares": refused,
        "auto_decompress": False,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "trust_env": False,
    }


def open_session(*, hands_on_redirects: bool = False, **options: Any) -> aiohttp.ClientSession:
    """A session with `session_options`, and with `options` of aiohttp's beside them."""
    plain = session_options(hands_on_redirects=hands_on_redirects)
    plain["middlewares"] += tuple(options.pop("middlewares", ()))
    return aiohttp.ClientSession(**plain, **options)
