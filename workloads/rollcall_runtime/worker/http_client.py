"""The HTTP sessions of workers: what answers may have been taken over."""

from typing import Any

import aiohttp

from rollcall_protocol.wire.plain_answers import session_options


def plain_session(**options: Any) -> aiohttp.ClientSession:
    """A session that follows no redirect, decompresses nothing and keeps no cookie.

    aiohttp.ClientOSError for such an answer. `options` are aiohttp's.
    """
    jar = aiohttp.DummyCookieJar()
    return aiohttp.ClientSession(**session_options(), cookie_jar=jar, **options)
