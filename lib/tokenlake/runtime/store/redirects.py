"""Which redirects of web servers are followed.

A redirect names a place that the user did not name. It is followed only

- to HTTP or HTTPS, and not from HTTPS to HTTP;
- where ``TOKENLAKE_ALLOWED_INPUTS`` is set, to a URL that it allows;
- else from a public host to a public one, and from a private host (this machine, its
  network, a name that resolves there) to the same host alone. Services of a network
  trust whoever is in it: a cloud answers with its credentials at such an address.

A name is judged by all addresses that it resolves to, twice: when the redirect comes,
and once more by the resolver that the connection itself uses, because the answer may be
another one by then. An address that carries another one (IPv4-mapped, NAT64) is judged
by that. Forms that are out of use or lead through relays are refused: 6to4, Teredo,
IPv4-compatible and site-local addresses.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeAlias, final
from urllib.parse import urlsplit

from tokenlake.errors import ConfigError
from tokenlake.runtime.store.allowed import INPUTS, AllowedPlaces
from tokenlake.runtime.store.url import parse_url

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST_REDIRECTS: Final = 10
"""Redirects of one request that are followed."""

PUBLIC_ONLY: Final = ContextVar("tokenlake_public_only", default=False)
"""Whether the connections of the request under way must be to public addresses."""

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Protocol assignments (RFC 6890), which older releases of Python take for public in
# part; a cloud answers at .192.
_ASSIGNED: Final = ipaddress.IPv4Network("192.0.0.0/24")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
# 6to4, Teredo.
_RELAYED: Final = (
    ipaddress.IPv6Network("2002::/16"),
    ipaddress.IPv6Network("2001::/32"),
)


class RedirectRefusedError(Exception):
    """A redirect leads where it may not. It becomes the failure of the request, and
    is not tried again.
    """


@final
@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Scheme, host and port of a URL, in lower case and with the port written out."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> HttpOrigin:
        """Return the origin of a URL; RedirectRefusedError where it has none that is
        valid.
        """
        try:
            parts = urlsplit(url)
            scheme = parts.scheme.lower()
            port = parts.port or (443 if scheme == "https" else 80)
        except ValueError:
            raise RedirectRefusedError(
                "the server redirects to an invalid URL"
            ) from None
        return cls(scheme, (parts.hostname or "").lower(), port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}.get(self.scheme)
        return f"{self.scheme}://{host}" + (
            "" if self.port == usual else f":{self.port}"
        )


def require_allowed_redirect(source: str, target: str) -> bool:
    """Refuse a redirect by what its URLs say.

    Args:
        source: URL that was asked for.
        target: Absolute URL that the server names.

    Returns:
        Whether the addresses of both hosts are still to be judged, by
        :func:`require_allowed_addresses`.

    Raises:
        RedirectRefusedError: It is not followed.
    """
    before, after = HttpOrigin.of(source), HttpOrigin.of(target)
    if after.scheme not in ("http", "https") or (
        before.scheme == "https" and after.scheme == "http"
    ):
        raise RedirectRefusedError(
            f"the server redirects from {before.scheme} to {after.scheme}"
        )
    places = AllowedPlaces.of(os.environ, INPUTS)
    # The user of a command may read a host that is not listed; on that host a redirect
    # changes nothing.
    if places.is_bounded and (before != after or _is_listed(source, places)):
        if not _is_listed(target, places):
            raise RedirectRefusedError(
                f"the server redirects to {after}, outside the places that {INPUTS} allows in this environment"
            )
        return False
    return before.host != after.host


def require_allowed_addresses(
    source: Iterable[str], target: Iterable[str], origin: HttpOrigin
) -> None:
    """Refuse a redirect from one host to another by the addresses that their names
    resolve to.

    Args:
        source: Addresses of the host that was asked.
        target: Addresses of the host that it names.
        origin: Of the target, for the message.

    Raises:
        RedirectRefusedError: It leads to an address that is not public, or comes from
            one.
    """
    for text in target:
        if (kind := private_kind(text)) is not None:
            raise RedirectRefusedError(f"the server redirects to {origin}, {kind}")
    if any(private_kind(text) is not None for text in source):
        raise RedirectRefusedError(
            f"the server redirects to {origin}, but a server of a private network may only redirect to itself"
        )


def private_kind(text: str) -> str | None:
    """Return what an address is that is not public, as a clause with its article;
    None for a public one.
    """
    address = _unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_link_local:
        return "a link-local address"
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network in _RELAYED):
            return "an address of a relay (6to4 or Teredo)"
        is_public = address.is_global and address in _GLOBAL_UNICAST
    else:
        is_public = address.is_global and address not in _ASSIGNED
    if is_public and not address.is_multicast:
        return None
    return "an address of the private network"


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, else the address
    itself.
    """
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    low = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    is_compatible = int(address) >> 32 == 0 and int(address) > 0xFFFF
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return low
    # Nothing answers at an IPv4-compatible address today; what it would mean is told in
    # the message.
    if is_compatible and not low.is_global:
        return low
    return address


def _is_listed(url: str, places: AllowedPlaces) -> bool:
    try:
        return places.has_url(parse_url(url.partition("?")[0].partition("#")[0]))
    except ConfigError:
        return False
