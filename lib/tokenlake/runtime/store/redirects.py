"""Redirects of web servers, and which of them are followed.

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


# Schemes that redirects may have, and their ports.
_PORTS: Final = {"http": 80, "https": 443}


class RedirectRefusedError(Exception):
    """A redirect leads to a place where it may not.

    It becomes the failure of the request, and is not tried again.
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
        """Return the origin of a URL.

        Raises:
            RedirectRefusedError: The URL has no valid origin.
        """
        try:
            url_parts = urlsplit(url)
            scheme = url_parts.scheme.lower()
            port = url_parts.port or (443 if scheme == "https" else 80)
        except ValueError:
            raise RedirectRefusedError(
                "the server redirects to an invalid URL"
            ) from None
        return cls(scheme, (url_parts.hostname or "").lower(), port)

    def __str__(self) -> str:
        # As people write it: a port that the scheme has anyway is left out.
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port == _PORTS.get(self.scheme):
            return f"{self.scheme}://{host}"
        return f"{self.scheme}://{host}:{self.port}"


def require_allowed_redirect(source: str, target: str) -> bool:
    """Refuse a redirect by its URLs.

    Args:
        source: URL that was asked for.
        target: Absolute URL that the server names.

    Returns:
        Whether the addresses of both hosts are still to be judged, by
        :func:`require_allowed_addresses`.

    Raises:
        RedirectRefusedError: It is not followed.
    """
    # A redirect to plain HTTP would let others on the way change the bytes.
    before = HttpOrigin.of(source)
    after = HttpOrigin.of(target)
    is_downgrade = before.scheme == "https" and after.scheme == "http"
    if after.scheme not in _PORTS or is_downgrade:
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
    """Refuse a redirect from one host to another by the addresses of both hosts.

    Args:
        source: Addresses of the host that was asked.
        target: Addresses of the host that it names.
        origin: Origin of the target, for the message.

        origin: Origin of the target, for the message.
        RedirectRefusedError: It leads to an address that is not public, or comes from
            one.
    """
    # All addresses of a name count, because the connection may use any of them.
    for address in target:
        address_kind = private_kind(address)
        if address_kind is not None:
            raise RedirectRefusedError(
                f"the server redirects to {origin}, {address_kind}"
            )
    if any(private_kind(address) is not None for address in source):
        raise RedirectRefusedError(
            f"the server redirects to {origin}, but a server of a private network may only redirect to itself"
        )


def private_kind(text: str) -> str | None:
    """Return the kind of an address that is not public; None for a public one.

    The kind is a clause with its article.
    """
    # The zone of an address (after `%`) does not change where it leads.
    address = _unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_link_local:
        return "a link-local address"
    # An IPv6 address is public only if it is known to be: other blocks are not
    # assigned.
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
    """Return the IPv4 address inside an IPv6 address, else the address itself."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    low_address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    is_compatible = int(address) >> 32 == 0 and int(address) > 0xFFFF
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return low_address
    # Nothing answers at an IPv4-compatible address today. The kind of the IPv4 address
    # is stated in the message.
    if is_compatible and not low_address.is_global:
        return low_address
    return address


def _is_listed(url: str, places: AllowedPlaces) -> bool:
    """Return whether a URL is allowed; its query is not compared."""
    try:
        return places.has_url(parse_url(url.partition("?")[0].partition("#")[0]))
    except ConfigError:
        return False
