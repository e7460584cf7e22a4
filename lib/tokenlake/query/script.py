"""Text that is typed or piped, cut into SQL statements."""

from __future__ import annotations

import duckdb


def cut(text: str) -> tuple[list[str], str]:
    """Return the statements of a text that end with a semicolon, without it, and the rest.

    A semicolon in a string, a quoted name or a comment ends nothing. Nothing but comments is no statement.
    """
    raw, found, begin, blank = text.encode(), list[str](), 0, True
    for offset, kind in duckdb.tokenize(text):  # its offsets are of bytes
        if kind == duckdb.token_type.operator and raw[offset : offset + 1] == b";":
            found += [] if blank else [raw[begin:offset].decode().strip()]
            begin, blank = offset + 1, True
        elif kind != duckdb.token_type.comment:
            blank = False
    return found, "" if blank else raw[begin:].decode()
