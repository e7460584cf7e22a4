"""Figures as people read them. Programs get the raw values instead."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT_UNITS = ("", "k", "M", "G", "T")


def count(value: int) -> str:
    """``1234567`` -> ``1,234,567``."""
    return f"{value:,}"


def size(value: float) -> str:
    """Bytes in binary units with three significant digits: ``12.1 MiB``; below 1 KiB
    exact: ``512 B``.
    """
    if value < 1024:
        return f"{int(value)} B"
    unit = 0
    while value >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{_three_digits(value)} {_BYTE_UNITS[unit]}"


def short(value: float) -> str:
    """A large figure in a few characters: ``5.05 M``, ``999``, ``1.20 G``."""
    unit = 0
    while value >= 999.5 and unit < len(_SHORT_UNITS) - 1:
        value /= 1000
        unit += 1
    return (
        f"{int(value)}" if unit == 0 else f"{_three_digits(value)} {_SHORT_UNITS[unit]}"
    )


def rate(bytes_: float, seconds: float) -> str:
    """Throughput in decimal megabytes per second, the unit of the benchmarks: ``43.1
    MB/s``.
    """
    if seconds <= 0:
        return "-"
    return f"{_three_digits(bytes_ / 1e6 / seconds)} MB/s"


def percent(part: float, whole: float, digits: int = 2) -> str:
    """``part / whole`` as ``99.87%``; ``-`` for an empty whole. A share below 100%
    is never rounded up to it.
    """
    if not whole:
        return "-"
    shown = f"{100 * part / whole:.{digits}f}"
    if part < whole and float(shown) >= 100:
        shown = f"{100 - 10**-digits:.{digits}f}"
    return f"{shown}%"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12.3 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def age(seconds: float) -> str:
    """``3 days``: in the largest unit of which there are two."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return plural(int(seconds / length), unit)
    return plural(int(seconds), "second")


def plural(number: int, noun: str, several: str | None = None) -> str:
    """``1 shard``, ``2 shards``; `several` where it is more than an s that differs."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
