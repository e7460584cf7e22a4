"""The list of a cleaning run: a Parquet file of documents that builds leave out.

Its key-value metadata says how it was made, so that a later run can compare its
documents with an earlier list's.
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
"""``file`` and ``position`` name the document; ``kept_file`` and ``kept_position``
the one that a duplicate equals.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanAbout:
    """Description of the run that wrote a list.

    Attributes:
        signing: Options of the signatures.
        units: Fingerprints of the signatures, in order.
        accounts: Source -> audit; documents that are left out count as `filtered`, by
            reason.
        sets: Evaluation set -> number of its documents, of those too short to be found,
            and of its n-grams.
    """

    signing: Mapping[str, Any]
    units: tuple[str, ...]
    accounts: Mapping[str, Account]
    sets: Mapping[str, Mapping[str, int]]

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        fields = asdict(self) | {"format": FORMAT}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the description that the bytes hold.

        Raises:
            ValueError: The bytes have another format.
            KeyError: A field is missing.
        """
        fields = json.loads(data)
        if fields["format"] != FORMAT:
            raise ValueError("it has another format")
        accounts: dict[str, Account] = {}
        for name, account_fields in fields["accounts"].items():
            accounts[name] = Account(**account_fields)
        return cls(
            signing=fields["signing"],
            units=tuple(fields["units"]),
            accounts=accounts,
            sets=fields["sets"],
        )


def places_hash(file: Any, position: Any) -> UInt64:
    """Return a hash of documents' identities (int64[n] each), uint64[n]."""
    return splitmix64(splitmix64(position.view("uint64")) ^ file.view("uint64"))


@final
class EarlierList:
    """A list that an earlier run wrote.

    Args:
        path: Path of the list.
        signing: Options of this run's signatures.

    Attributes:
        units: Fingerprints of the signatures of its documents.
        places: Hashes of the places that it leaves out, uint64[m].

    Raises:
        ConfigError: The file is no such list, or its signatures cannot be compared with
            those of this run.
    """

    def __init__(self, path: str, signing: Signing) -> None:
        about = read_about(path)
        if about is None:
            raise ConfigError(
                f"clean.against: {path}: expected a list that `tokenlake clean` wrote; this file does not record how "
                "it was made",
                file=path,
            )
        # Keys of other options never match, so that no duplicate would be found.
        for option, value in signing.comparable.items():
            if about.signing[option] != value:
                raise ConfigError(
                    f"clean.against: {path} was made with {option} {about.signing[option]!r}, and this run has "
                    f"{value!r}; only signatures of the same kind can be compared. Give both runs the same "
                    "clean.exact and clean.minhash",
                    file=path,
                )
        table = pq.read_table(path, columns=["file", "position"])
        self.units = about.units
        self.places = places_hash(
            table["file"].to_numpy(), table["position"].to_numpy()
        )


def read_about(path: str) -> CleanAbout | None:
    """Return the description of a list; None for a Parquet file of another kind.

    Raises:
        ConfigError: There is no such file, or it is no Parquet file, or another release
            wrote it.
    """
    # The description is in the footer, so that no rows are read.
    try:
        metadata = pq.read_metadata(path).metadata or {}
        description = metadata.get(_ABOUT.encode())
        if description is None:
            return None
        return CleanAbout.from_bytes(description)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", file=path) from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError(
            f"{path}: not a list of documents to leave out: {error}", file=path
        ) from error


def require_ours(path: str) -> None:
    """Raise ConfigError if `path` is a file that no run of `clean` wrote.

    A list made by hand is never replaced.
    """
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
        # In the same folder, so that the file can be moved whole.
        self._temp = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._rows = EvenRowGroups(self._temp, SCHEMA, ["source", "path", "reason"])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add documents."""
        self._rows.write(rows)

    def finish(self, about: CleanAbout) -> None:
        """Move the file to its path, whole."""
        self._rows.finish({_ABOUT: about.to_bytes().decode()})
        # The bytes are on the disk before the name points to them.
        with self._temp.open("rb") as file:
            os.fsync(file.fileno())
        self._temp.replace(self._path)

    def discard(self) -> None:
        """Remove the temporary file."""
        self._rows.discard()
        self._temp.unlink(missing_ok=True)
