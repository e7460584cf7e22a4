"""The list that a cleaning run writes: a Parquet file of the documents that builds leave out.

Its key-value metadata says how it was made, so that a later run can compare its documents with an earlier list's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import UInt64
from tokenlake.config.resolved import Signing
from tokenlake.errors import ConfigError
from tokenlake.etl.clean.signatures import EvenRowGroups
from tokenlake.runtime.mixing.random import splitmix64
from tokenlake.runtime.store.account import Account

FORMAT: Final = 1
_ABOUT: Final = "tokenlake.clean"
SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.int64(), False),
        pa.field("position", pa.int64(), False),
        pa.field("source", pa.string(), False),
        pa.field("path", pa.string(), False),
        pa.field("reason", pa.string(), False),
        pa.field("kept_file", pa.int64()),
        pa.field("kept_position", pa.int64()),
    ]
)
"""``file``, ``position``: the document. ``kept_file``, ``kept_position``: of a duplicate, the document that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanAbout:
    """How a list was made.

    Attributes:
        signing: what was made of every document.
        units: fingerprints of the signatures, in order.
        accounts: by source; what is left out is `filtered` by its reason.
        sets: evaluation set to its documents, those too short to be found, and n-grams.
    """

    signing: Mapping[str, Any]
    units: tuple[str, ...]
    accounts: Mapping[str, Account]
    sets: Mapping[str, Mapping[str, int]]

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        data = asdict(self) | {"format": FORMAT}
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what the bytes say; ValueError or KeyError where they are of another format."""
        found = json.loads(data)
        if found.pop("format") != FORMAT:
            raise ValueError("it is of another format")
        accounts = {name: Account(**each) for name, each in found.pop("accounts").items()}
        return cls(accounts=accounts, units=tuple(found.pop("units")), **found)


def places_hash(file: Any, position: Any) -> UInt64:
    """Return a hash of documents' identities (int64[n] each), uint64[n]."""
    return splitmix64(splitmix64(position.view("uint64")) ^ file.view("uint64"))


@final
class EarlierList:
    """A list that an earlier run wrote.

    Attributes:
        units: fingerprints of the signatures of its documents.
        places: uint64[m], hashes of the places that it leaves out.

    Raises:
        ConfigError: it is none, or was made with signatures that cannot be compared with these.
    """

    def __init__(self, path: str, signing: Signing) -> None:
        about = read_about(path)
        if about is None:
            raise ConfigError(
                f"clean.against: {path}: expected a list that `tokenlake clean` wrote; this file does not record how "
                "it was made",
                file=path,
            )
        for name, value in signing.comparable.items():
            if about.signing[name] != value:
                raise ConfigError(
                    f"clean.against: {path} was made with {name} {about.signing[name]!r}, and this run has "
                    f"{value!r}; only signatures of the same kind can be compared. Give both runs the same "
                    "clean.exact and clean.minhash",
                    file=path,
                )
        table = pq.read_table(path, columns=["file", "position"])
        self.units = about.units
        self.places = places_hash(table["file"].to_numpy(), table["position"].to_numpy())


def read_about(path: str) -> CleanAbout | None:
    """Return how a list was made; None of a Parquet file of another kind.

    Raises:
        ConfigError: there is no such file, or it is no Parquet file, or of another release.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return CleanAbout.from_bytes(metadata[key]) if (key := _ABOUT.encode()) in metadata else None
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", file=path) from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"{path}: not a list of documents to leave out: {error}", file=path) from error


def require_ours(path: str) -> None:
    """Raise ConfigError where a file lies at `path` that no run of `clean` wrote: a list made by hand stays."""
    if Path(path).exists() and read_about(path) is None:
        raise ConfigError(
            f"clean.output: {path} exists, but `tokenlake clean` did not write it; name another file. Give your own "
            "list to `exclude`; `clean` adds its documents to the new list",
            file=path,
        )


@final
class ListWriter:
    """Writes a list to a temporary file, which takes its place at the end, whole."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temp = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._rows = EvenRowGroups(self._temp, SCHEMA, ["source", "path", "reason"])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add documents."""
        self._rows.write(rows)

    def finish(self, about: CleanAbout) -> None:
        """Put the file in its place."""
        self._rows.finish({_ABOUT: about.to_bytes().decode()})
        with self._temp.open("rb") as file:
            os.fsync(file.fileno())
        self._temp.replace(self._path)

    def discard(self) -> None:
        """Give up: remove the temporary file."""
        self._rows.discard()
        self._temp.unlink(missing_ok=True)
