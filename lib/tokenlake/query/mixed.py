"""What the documents of a mixture are called in it.

Rows name the file that a text came from, with the source's name of that time. A mixture may call the same tokens
otherwise, and which of its sources a document is of follows from the inputs of the parents.
"""

from __future__ import annotations

from tokenlake.catalog import Catalog
from tokenlake.errors import NotFoundError
from tokenlake.manifest import Manifest

Place = tuple[str, str]
"""Source and path of an input file, as rows name it."""


def mixed_as(catalog: Catalog, manifest: Manifest) -> dict[Place, str]:
    """Return the name in the mixture of every input file that is of one of its sources alone.

    Nothing for what is no mixture, and nothing of parents that are not in the store any more.
    """
    found: dict[Place, set[str]] = {}
    sources = {} if manifest.mixture is None else manifest.mixture.sources
    for name, source in sources.items():
        try:
            parent = catalog.manifest(source.dataset, source.version)
        except NotFoundError:
            continue
        for entry in parent.inputs:
            found.setdefault((entry.source, entry.path), set()).add(name)
    return {place: names.pop() for place, names in found.items() if len(names) == 1}
