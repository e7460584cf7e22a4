"""What a query can name, and which of it a query does name.

Only what a query mentions is verified and made: a store may hold terabytes, a question is about little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from tokenlake.catalog import Catalog

Kind = Literal["rows", "documents", "quarantine", "table"]

TABLES: Final = {
    "datasets": "every version, committed or in progress",
    "splits": "rows, tokens and documents by split",
    "shards": "the Parquet files with their hashes",
    "inputs": "the input files with their version tokens",
    "accounts": "the account of each unit, by source; source * is what belongs to rows of several",
    "mixture": "what mixtures were asked for and came to, a row for each source",
    "documents": "provenance of every piece of a document, all datasets",
}

_PARTS: Final[dict[Kind, str]] = {"documents": "provenance of", "quarantine": "bad records of"}


@final
@dataclass(frozen=True, slots=True)
class Relation:
    """A name that a query can use.

    Attributes:
        name: as written in SQL, to be quoted when it is no plain identifier.
        kind: ``rows`` of a version, its ``documents`` or ``quarantine``, or a ``table`` about the store.
        dataset, version: of which version; empty and 0 for tables about the store.
        about: one line for people.
    """

    name: str
    kind: Kind
    dataset: str = ""
    version: int = 0
    about: str = ""


def relations(catalog: Catalog) -> dict[str, Relation]:
    """Everything that can be asked, by name; tables about the store win over datasets of the same name."""
    found: dict[str, Relation] = {}
    for dataset in catalog.datasets():
        committed = [info.version for info in catalog.versions(dataset) if info.committed]
        for name, version in [(f"{dataset}@v{v}", v) for v in committed] + [
            (dataset, v) for v in committed[-1:]
        ]:
            found[name] = Relation(name, "rows", dataset, version, f"rows of {dataset} v{version}")
            for kind, about in _PARTS.items():
                full = f"{name}/{kind}"
                found[full] = Relation(full, kind, dataset, version, f"{about} {dataset} v{version}")
    for name, about in TABLES.items():
        found[name] = Relation(name, "table", about=about)
    return found


def mentioned(words: Iterable[str], known: dict[str, Relation]) -> list[Relation]:
    """The relations among ``words``, in the order of ``known``."""
    wanted = {word.lower() for word in words}
    return [relation for name, relation in known.items() if name in wanted]
