"""Figures as people read them. Programs get the raw values instead."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT_UNITS = ("", "k", "M", "G", "T")


def count(value: int) -> str:
    """``1234567`` -> ``1,234,567``."""
    return f"{value:,}"


def size(value: float) -> str:
    """Bytes in binary units with three significant digits: ``12.1 MiB``.

    Bytes below 1 KiB are exact: ``512 B``.
    """
    if value < 1024:
        return f"{int(value)} B"
    # 999.5 would be shown as 1000, which has four digits.
    unit_index = 0
    while value >= 999.5 and unit_index < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit_index += 1
    return f"{_three_digits(value)} {_BYTE_UNITS[unit_index]}"


def short(value: float) -> str:
    """A large figure in a few characters: ``5.05 M``, ``999``, ``1.20 G``."""
    unit_index = 0
    while value >= 999.5 and unit_index < len(_SHORT_UNITS) - 1:
        value /= 1000
        unit_index += 1
    # A small figure is a whole number of things.
    if unit_index == 0:
        return f"{int(value)}"
    return f"{_three_digits(value)} {_SHORT_UNITS[unit_index]}"


def rate(bytes_: float, seconds: float) -> str:
    """Throughput in decimal megabytes per second, the benchmarks' unit: ``43.1 MB/s``."""
    if seconds <= 0:
        return "-"
    return f"{_three_digits(bytes_ / 1e6 / seconds)} MB/s"


def percent(part: float, whole: float, digits: int = 2) -> str:
    """``part / whole`` as ``99.87%``; ``-`` for an empty whole.

    A share below 100% is never rounded up to it.
    """
    if not whole:
        return "-"
    percentage = f"{100 * part / whole:.{digits}f}"
    if part < whole and float(percentage) >= 100:
        percentage = f"{100 - 10**-digits:.{digits}f}"
    return f"{percentage}%"


def duration(seconds: float) -> str:
    """``0.4 s``, ``12.3 s``, ``2 min 05 s``, ``3 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    # Whole seconds are rounded first, so that 59.6 never becomes 60 s.
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left:02d} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min"


def age(seconds: float) -> str:
    """``3 days``: in the largest unit of which there are two."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return plural(int(seconds / length), unit)
    return plural(int(seconds), "second")


def plural(number: int, noun: str, several: str | None = None) -> str:
    """``1 shard``, ``2 shards``; `several` where it is more than an s that differs."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {several or noun + 's'}"


def _three_digits(value: float) -> str:
    # The limits are those of rounding: 9.995 has two digits before the point.
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
