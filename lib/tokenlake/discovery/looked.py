"""What a look into one file found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from tokenlake.discovery.shapes import Shape
from tokenlake.sources.inputs import InputFile


def _no_reasons() -> dict[str, int]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look into a file found.

    Attributes:
        file: the file; its format is what its bytes say where the name says otherwise (JSON or JSON Lines).
        columns: name to type.
        rows: the first records, at most 64 of them.
        lengths: characters of the texts of a file that is one text, where they are not those of `rows`.
        seen: records in the part that was looked at, bad ones too.
        bad: how many of them are bad, by reason.
        stored: stored bytes of that part.
        total: records of the whole file where it is known for sure, else None.
        delimiter: between the cells of CSV where it is not what the extension says, else None.
        lines: non-empty lines and blank lines of a text file's beginning.
        damage: why the file cannot be read, None where it can.
        remark: what could not be looked at, None for nothing.
        bytes_read: bytes that were read for all this.
    """

    file: InputFile
    columns: Mapping[str, Shape]
    rows: tuple[dict[str, Any], ...] = ()
    lengths: float | None = None
    seen: int = 0
    bad: Mapping[str, int] = field(default_factory=_no_reasons)
    stored: int = 0
    total: int | None = None
    delimiter: str | None = None
    lines: tuple[int, int] = (0, 0)
    damage: str | None = None
    remark: str | None = None
    bytes_read: int = 0
