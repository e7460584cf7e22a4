"""Formats of files and what can compress them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tokenlake.config.near import did_you_mean
from tokenlake.errors import ConfigError

FORMATS: Final = ("parquet", "arrow", "jsonl")

_FITTING: Final = {
    "parquet": ("none", "gzip", "lz4", "zstd"),
    "arrow": ("none", "lz4", "zstd"),
    "jsonl": ("none", "gzip", "zstd"),
}
_DEFAULT: Final = {"parquet": "zstd", "arrow": "none", "jsonl": "none"}
_ENDINGS: Final = {"gzip": ".gz", "zstd": ".zst"}
_ALL: Final = ("none", "gzip", "lz4", "zstd")
_WHY: Final = {
    ("arrow", "gzip"): "Arrow IPC knows lz4 and zstd alone",
    ("jsonl", "lz4"): "readers of JSON Lines know gzip and zstd alone",
}


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How files are written: ``parquet``, ``arrow`` (IPC files) or ``jsonl``, and ``none`` or a compression.

    Raises:
        ConfigError: there is no such format or compression, or they do not go together.
    """

    format: str
    compression: str

    def __post_init__(self) -> None:
        _check("format", self.format, FORMATS)
        _check("compression", self.compression, _ALL)
        if self.compression not in _FITTING[self.format]:
            raise ConfigError(
                f"compression: {self.compression!r} with format {self.format!r}: "
                f"{_WHY[self.format, self.compression]}; use one of {', '.join(map(repr, _FITTING[self.format]))}",
                got=self.compression,
            )

    @classmethod
    def of(cls, format: str, compression: str | None) -> Form:
        """Return the form; None compresses as usual: zstd in Parquet, else nothing."""
        _check("format", format, FORMATS)
        return cls(format, _DEFAULT[format] if compression is None else compression)

    @property
    def extension(self) -> str:
        """Return ``.parquet``, ``.arrow``, ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``."""
        return f".{self.format}" + (_ENDINGS.get(self.compression, "") if self.format == "jsonl" else "")


def _check(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ConfigError(
            f"{what}: got {value!r}, must be one of {', '.join(map(repr, allowed))}{near}", got=repr(value)
        )
