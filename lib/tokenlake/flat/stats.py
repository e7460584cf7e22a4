"""What was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from tokenlake.flat.manifest import FlatManifest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStats:
    """What was written.

    Attributes:
        num_examples: rows.
        num_shards: files.
        total_bytes: of all files, as stored.
        output_paths: of the files, in the order of their rows.
        num_tokens: ids in all rows, those around documents included, padding not; None where rows hold no tokens.
    """

    num_examples: int
    num_shards: int
    total_bytes: int
    output_paths: list[str]
    num_tokens: int | None = None

    @classmethod
    def of(cls, manifest: FlatManifest, target: Path, num_tokens: int | None = None) -> WriteStats:
        """Sum up what lies at `target`."""
        return cls(
            num_examples=manifest.rows,
            num_shards=len(manifest.files),
            total_bytes=sum(file.bytes for file in manifest.files),
            output_paths=[str(target / file.path) for file in manifest.files],
            num_tokens=num_tokens,
        )
