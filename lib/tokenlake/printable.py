"""Text of data, made safe to show: it must not drive a terminal, nor reorder what stands around it on a page."""

from __future__ import annotations

from typing import Any, Final


def printable(text: str) -> str:
    """``text`` with control characters made visible: data must not drive the reader's terminal.

    Line ends and tabs stay. Also escaped: the C1 range, the marks that reorder text, and halves of surrogate pairs,
    which no file of text can hold.
    """
    return text.translate(VISIBLE)


def _visible() -> dict[int, str]:
    controls = [
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        0x200E,
        0x200F,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ]
    return {c: f"\\x{c:02x}" if c < 256 else f"\\u{c:04x}" for c in controls if chr(c) not in "\n\t"}


VISIBLE: Final[Any] = _visible()
"""What :func:`printable` writes for each of these characters."""


def printable_json(text: str) -> str:
    """JSON with the same characters escaped as JSON does; itself it escapes only what lies below the space."""
    return text.translate(_IN_JSON)


_IN_JSON: Final[Any] = {code: f"\\u{code:04x}" for code in VISIBLE if code > 0x20}


def one_line(text: str) -> str:
    """``text`` as :func:`printable` shows it, its line ends and tabs made visible, too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
