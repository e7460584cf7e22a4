"""Names that a query can use.

These are the versions of a store, their provenance and bad records, and tables about
the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from tokenlake.runtime.store.catalog import Catalog

Kind = Literal["rows", "documents", "quarantine", "table"]
"""Kind of a relation."""

TABLES: Final = {
    "datasets": "every version, committed or in progress",
    "splits": "rows, tokens and documents by split",
    "shards": "the Parquet files with their hashes",
    "inputs": "the input files with their version tokens",
    "accounts": "the audit of each unit, by source; rows that several sources share are under source *",
    "mixture": "requested and achieved shares of a mixture, one row for each source",
    "documents": "provenance of every piece of a document, in the newest version of every dataset",
}
"""Tables about the store, and a line about each."""

# Parts of a version that are relations of their own -> the beginning of their line.
_PARTS: Final[dict[Kind, str]] = {
    "documents": "provenance of",
    "quarantine": "bad records of",
}


@final
@dataclass(frozen=True, slots=True)
class Relation:
    """A name that a query can use.

    Attributes:
        name: Name, to be quoted in SQL if it is no plain identifier.
        kind: ``rows`` of a version, its ``documents`` or ``quarantine``, or a ``table``
            about the store.
        dataset: Name of the dataset; empty for a table about the store.
        version: Number of the version; 0 for a table about the store.
        about: One line for people.
    """

    name: str
    kind: Kind
    dataset: str = ""
    version: int = 0
    about: str = ""


def relations(catalog: Catalog) -> dict[str, Relation]:
    """Return name -> relation for everything in a store that a query can use.

    The name of a dataset alone stands for its newest version. A table about the store
    wins over a dataset of its name.
    """
    relation_of: dict[str, Relation] = {}
    for dataset in catalog.datasets():
        newest_version: int | None = None
        for info in catalog.versions(dataset):  # ascending
            if info.committed:
                newest_version = info.version
                name = f"{dataset}@v{info.version}"
                _add_version(relation_of, name, dataset, info.version)
        if newest_version is not None:
            _add_version(relation_of, dataset, dataset, newest_version)
    # Last, so that a table replaces a dataset of its name.
    for table_name, about in TABLES.items():
        relation_of[table_name] = Relation(table_name, "table", about=about)
    return relation_of


def _add_version(
    relation_of: dict[str, Relation], name: str, dataset: str, version: int
) -> None:
    """Add the relations of one version under a name."""
    rows_about = f"rows of {dataset} v{version}"
    relation_of[name] = Relation(name, "rows", dataset, version, rows_about)
    for kind, beginning in _PARTS.items():
        full_name = f"{name}/{kind}"
        about = f"{beginning} {dataset} v{version}"
        relation_of[full_name] = Relation(full_name, kind, dataset, version, about)


def mentioned(words: Iterable[str], relation_of: dict[str, Relation]) -> list[Relation]:
    """Return the relations whose names are among the words of a statement.

    They come in the order of the store's relations.
    """
    # SQL ignores the case of names; those of datasets are lower case.
    lower_words = {word.lower() for word in words}
    return [relation for name, relation in relation_of.items() if name in lower_words]
