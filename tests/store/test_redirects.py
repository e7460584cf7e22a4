"""Which addresses are public, and which redirects are followed, without any network."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.runtime.store import (
    HttpOrigin,
    RedirectRefusedError,
    require_allowed_addresses,
    require_allowed_redirect,
)

#: An address of the server that redirects, and where it redirects to.
SERVER = ["8.8.8.8"]
TARGET = HttpOrigin.of("http://x/")
REFUSED = "redirects to http://x"

PRIVATE = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::169.254.169.254",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "64:ff9b:1:ffff::8.8.8.8",
    "100::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:a9fe:a9fe::1",
    "2002:808:808::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff0e::1",
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "2606:2800:220:1::1",
    "64:ff9b::8.8.8.8",
    "::ffff:8.8.8.8",
]


def is_public(address: str) -> bool:
    """Whether a public server may redirect to an address."""
    try:
        require_allowed_addresses(SERVER, [address], TARGET)
    except RedirectRefusedError as error:
        assert REFUSED in str(error)
        return False
    return True


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(RedirectRefusedError, match=REFUSED):
        require_allowed_addresses(SERVER, ["8.8.8.8", address], TARGET)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
    with pytest.raises(
        RedirectRefusedError, match="a private network may only redirect to itself"
    ):
        require_allowed_addresses(["10.0.0.1"], [address], TARGET)


@given(st.ip_addresses(v=4))
def test_an_address_in_another_is_judged_as_itself(
    address: ipaddress.IPv4Address,
) -> None:
    is_itself_public = is_public(str(address))
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        carried = ipaddress.IPv6Address(prefix | int(address))
        assert is_public(str(carried)) == is_itself_public
    assert not is_public(str(ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80)))


@given(st.ip_addresses(v=4))
def test_only_what_ipaddress_calls_global_is_public(
    address: ipaddress.IPv4Address,
) -> None:
    if is_public(str(address)):
        assert address.is_global and not address.is_multicast


@pytest.mark.parametrize(
    ("source", "target", "judged"),
    [
        ("https://a/x", "https://a/y", False),
        ("http://a/x", "https://a/y", False),
        ("https://a/x", "https://b/y", True),
        ("http://A:80/x", "http://a/y", False),
        ("http://a:1/x", "http://a:2/y", False),
    ],
)
def test_redirects_by_their_urls(source: str, target: str, judged: bool) -> None:
    assert require_allowed_redirect(source, target) is judged


@pytest.mark.parametrize(
    "target",
    ["http://a/x", "ftp://a/x", "file:///etc/passwd", "gopher://a", "https://[x/"],
)
def test_refused_by_their_urls(target: str) -> None:
    with pytest.raises(RedirectRefusedError):
        require_allowed_redirect("https://a/x", target)
