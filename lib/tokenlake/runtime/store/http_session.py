"""Session of aiohttp for web servers: redirects are judged before they are followed.

The connections of a redirect are judged, too.

aiohttp follows a redirect by itself, as if its target had been asked for. Before it
does, a trace of the session looks at it (:mod:`tokenlake.runtime.store.redirects`). To
another host none of the headers of the storage options go along.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tokenlake.runtime.store.redirects import (
    PUBLIC_ONLY,
    HttpOrigin,
    RedirectRefusedError,
    private_kind,
    require_allowed_addresses,
    require_allowed_redirect,
)

# Headers that may go to another host. All others may hold credentials, or may be meant
# for the first host.
_KEPT: Final = (
    "accept",
    "accept-encoding",
    "range",
    "if-match",
    "if-unmodified-since",
    "user-agent",
)


async def open_session(**options: Any) -> aiohttp.ClientSession:
    """Open a session whose redirects are judged.

    Args:
        options: Arguments of :class:`aiohttp.ClientSession`.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_judge_redirect)
    traces = [*options.pop("trace_configs", ()), trace]
    # Without a cache of names: an address that one request was allowed is not known to
    # be allowed to the next.
    connector = options.pop("connector", None) or aiohttp.TCPConnector(
        resolver=_JudgingResolver(), use_dns_cache=False
    )
    return aiohttp.ClientSession(connector=connector, trace_configs=traces, **options)


@final
class _JudgingResolver(AbstractResolver):
    """Resolves names; after a redirect to another host, to public addresses alone."""

    def __init__(self) -> None:
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        # The name is resolved once more for the connection, and may have another
        # address by now.
        if not PUBLIC_ONLY.get():
            return results
        public = [result for result in results if private_kind(result["host"]) is None]
        if not public:
            address_kind = private_kind(results[0]["host"]) if results else "no address"
            raise RedirectRefusedError(
                f"the server redirects to {host}, {address_kind}"
            )
        return public

    async def close(self) -> None:
        await self._resolver.close()


async def _judge_redirect(_session: Any, _context: Any, redirect: Any) -> None:
    """Raise RedirectRefusedError if a redirect must not be followed.

    Headers that are not for another host are removed.
    """
    answer = redirect.response
    location = answer.headers.get("Location") or answer.headers.get("URI") or ""
    # The target may be relative to the URL that was requested.
    try:
        source = answer.url
        target = source.join(type(source)(location, encoded=True))
    except ValueError:
        raise RedirectRefusedError("the server redirects to an invalid URL") from None
    needs_addresses = require_allowed_redirect(str(source), str(target))
    if target.origin() != source.origin():
        for header in list(redirect.headers):
            if header.lower() not in _KEPT:
                redirect.headers.popall(header, None)
    if needs_addresses:
        origin = HttpOrigin.of(str(target))
        require_allowed_addresses(
            await _addresses(source), await _addresses(target), origin
        )
        PUBLIC_ONLY.set(True)


async def _addresses(url: Any) -> list[str]:
    """Return the addresses that the host of a URL resolves to."""
    try:
        results = await asyncio.get_running_loop().getaddrinfo(
            url.host, url.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        message = f"the server redirects to {url.origin()}, whose name has no address"
        raise RedirectRefusedError(message) from error
    return [str(result[4][0]) for result in results]
