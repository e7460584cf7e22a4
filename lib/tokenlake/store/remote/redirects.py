"""Where a web server may send us: what a URL's owner allowed must not lead to what nobody did.

A redirect is followed by the HTTP library as if its target had been asked for. Before it does, the target is looked at
here: it must be HTTP, must not fall back from HTTPS, must not be an address of this machine or its network (a cloud's
metadata service answers there with credentials) when the first one was not, and must lie in
``TOKENLAKE_ALLOWED_INPUTS`` where that is set. To another host none of the headers of the storage options go along.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from typing import Any, Final

from tokenlake.errors import ConfigError
from tokenlake.store.remote.url import INPUTS, entries_of, is_odd, lies_below, parse_url

_KEPT: Final = frozenset(
    {"accept", "accept-encoding", "range", "if-match", "if-unmodified-since", "user-agent"}
)


class RedirectRefusedError(Exception):
    """A redirect leads where it may not. It becomes the failure of the request, and is not tried again."""


def guarded(client_options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for an aiohttp session whose redirects are looked at before they are followed."""
    import aiohttp  # an optional extra

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_look)
    return {**client_options, "trace_configs": [*client_options.get("trace_configs", ()), trace]}


async def _look(_session: Any, _context: Any, redirect: Any) -> None:
    answer = redirect.response
    location = answer.headers.get("Location") or answer.headers.get("URI") or ""
    try:
        source, target = answer.url, answer.url.join(type(answer.url)(location, encoded=True))
    except ValueError:
        raise RedirectRefusedError("the server redirects to what is no URL") from None
    if target.scheme not in ("http", "https") or (source.scheme == "https" and target.scheme == "http"):
        raise RedirectRefusedError(f"the server redirects from {source.scheme} to {target.scheme}")
    if target.origin() == source.origin():
        return
    for name in [name for name in redirect.headers if name.lower() not in _KEPT]:
        redirect.headers.popall(name, None)
    await _require_allowed(source, target)


async def _require_allowed(source: Any, target: Any) -> None:
    allowed = entries_of(os.environ.get(INPUTS))
    if allowed is not None:
        if not _is_listed(target, allowed):
            raise RedirectRefusedError(
                f"the server redirects to {target.origin()}, outside what {INPUTS} allows in this environment"
            )
        return
    near = await _addresses(target)
    if any(address.is_link_local for address in near):
        raise RedirectRefusedError(f"the server redirects to {target.origin()}, a link-local address")
    if any(map(_is_inner, near)) and not any(map(_is_inner, await _addresses(source))):
        raise RedirectRefusedError(
            f"the server redirects to {target.origin()}, an address of the private network"
        )


def _is_listed(target: Any, allowed: list[str]) -> bool:
    try:
        url = parse_url(str(target.with_query(None)))
        above = [parse_url(entry) for entry in allowed if entry.lower().startswith(("http://", "https://"))]
    except ConfigError:
        return False
    return not is_odd(url.path) and any(lies_below(url, each) for each in above)


async def _addresses(url: Any) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port)
    except OSError as error:
        raise RedirectRefusedError(
            f"the server redirects to {url.origin()}, whose name has no address"
        ) from error
    parsed = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    return [getattr(each, "ipv4_mapped", None) or each for each in parsed]


def _is_inner(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
