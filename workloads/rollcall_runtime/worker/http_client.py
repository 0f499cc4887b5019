"""The HTTP sessions of workers: what answers may have been taken over."""

from typing import Any

import aiohttp

from rollcall_protocol.wire.plain_answers import refuse_encoded, refuse_redirect


def plain_session(**options: Any) -> aiohttp.ClientSession:
    """A session that follows no redirect, decompresses nothing and keeps no cookie.

    aiohttp.ClientOSError for such an answer. `options` are aiohttp's.
    """
    return aiohttp.ClientSession(
        middlewares=(refuse_redirect, refuse_encoded),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        **options,
    )
