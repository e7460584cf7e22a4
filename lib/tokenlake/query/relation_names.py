"""Names that a query can use: the versions of a store, their provenance and bad
records, and tables about the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from tokenlake.runtime.store.catalog import Catalog

Kind = Literal["rows", "documents", "quarantine", "table"]
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
        committed = [
            info.version for info in catalog.versions(dataset) if info.committed
        ]
        for version in committed:
            _add_version(relation_of, f"{dataset}@v{version}", dataset, version)
        if committed:
            _add_version(relation_of, dataset, dataset, committed[-1])
    for name, about in TABLES.items():
        relation_of[name] = Relation(name, "table", about=about)
    return relation_of


def _add_version(
    relation_of: dict[str, Relation], name: str, dataset: str, version: int
) -> None:
    """Add the relations of one version under a name."""
    relation_of[name] = Relation(
        name, "rows", dataset, version, f"rows of {dataset} v{version}"
    )
    for kind, about in _PARTS.items():
        full_name = f"{name}/{kind}"
        relation_of[full_name] = Relation(
            full_name, kind, dataset, version, f"{about} {dataset} v{version}"
        )


def mentioned(words: Iterable[str], relation_of: dict[str, Relation]) -> list[Relation]:
    """Return the relations whose names are among the words of a statement, in their
    own order.
    """
    lower_words = {word.lower() for word in words}
    return [relation for name, relation in relation_of.items() if name in lower_words]
