"""Headers of pages, in the one form that our writer gives them.

A header is a Thrift struct in the compact protocol: each field a byte (steps from the last field's id << 4 | type),
then its value; integers are zigzag varints; a zero byte ends a struct::

    PageHeader       1 type = DATA_PAGE   2 uncompressed size   3 compressed size   4 crc   5 DataPageHeader
    DataPageHeader   1 values   2 encoding = PLAIN   3, 4 encoding of levels = RLE   5 statistics, none or empty

All of it but four numbers is the same in every page, so that a pattern says all there is to say about it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tokenlake.reading.thrift import signed

_NUMBER: Final = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_FORM: Final = re.compile(
    rb"\x15\x00"
    + (rb"\x15" + _NUMBER) * 3
    + rb"\x1c\x15"
    + _NUMBER
    + rb"\x15\x00\x15\x06\x15\x06(?:\x1c\x00)?\x00\x00",
    re.DOTALL,
)


class Unfamiliar(Exception):
    """Bytes that may be good Parquet, but are not laid out as our writer lays them out."""


class PageHeader(NamedTuple):
    """What a page says of itself.

    Attributes:
        begin: where its body begins.
        size, stored: bytes of its body, and of what that is compressed to.
        crc: of the compressed body, unsigned.
        values: or levels, which there are as many of.
    """

    begin: int
    size: int
    stored: int
    crc: int
    values: int


def parse_header(data: bytes | memoryview, at: int = 0) -> PageHeader:
    """Read the header that begins at a place.

    Raises:
        Unfamiliar: it has another form, or numbers of more than 32 bits.
    """
    found = _FORM.match(data, at)
    if found is None:
        raise Unfamiliar("the header of a page has another form")
    size, stored, crc, values = map(signed, found.groups())
    if not all(-(1 << 31) <= number < 1 << 31 for number in (size, stored, crc, values)):
        raise Unfamiliar("a number in the header of a page has more than 32 bits")
    return PageHeader(found.end(), size, stored, crc & 0xFFFFFFFF, values)
