"""What clients of the project take from an HTTP server: no redirect, and nothing compressed.

The other side may be a user's image. A redirect would bring a request, and what it shows, to an
address of that image's choice; a few bytes that are compressed become gigabytes.
"""

from collections.abc import Awaitable, Callable
from typing import Any


class UnusableAnswerError(ConnectionError):
    """An answer that no client of the project takes; aiohttp raises ClientOSError from it."""


ACCEPTED = {"Accept-Encoding": "identity"}


async def refuse_redirect(request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware of aiohttp's clients: UnusableAnswerError for an answer that leads elsewhere."""
    answer = await send(request)
    if 300 <= answer.status < 400:
        answer.close()
        raise UnusableAnswerError(f"it answered {answer.status}, a redirect, which is not followed")
    return answer


async def refuse_encoded(request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware of aiohttp's clients: UnusableAnswerError for a body in another encoding.

    Use it with `auto_decompress=False`: aiohttp would begin to decompress before it is called.
    """
    request.headers.update(ACCEPTED)
    answer = await send(request)
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        answer.close()
        raise UnusableAnswerError("it answered with a compressed body, which was not asked for")
    return answer


def session_options(*, hands_on_redirects: bool = False) -> dict[str, Any]:
    """Of aiohttp's session: it follows no redirect, decompresses nothing and looks for no proxy.

    aiohttp.ClientOSError for such an answer. With `hands_on_redirects` they are answers as others:
    each request then says `allow_redirects=False`. The cookie jar is the caller's matter.
    """
    refused = (refuse_encoded,) if hands_on_redirects else (refuse_redirect, refuse_encoded)
    return {"middlewares": refused, "auto_decompress": False, "trust_env": False}
