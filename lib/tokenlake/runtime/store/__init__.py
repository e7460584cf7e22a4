"""Sealed JSON documents: canonical bytes that carry their own sha256, read back
strictly.

Manifests, ledger records, claims and tags are sealed. A document is the canonical JSON
of an object whose ``sha256`` is that of the same object without that field, so any
changed bit is found without a second file. Reading trusts nothing: a missing, unknown,
mistyped or absurd value is an :class:`IntegrityError` that names the file and the key.
"""

from tokenlake.base.lazy_names import lazy_package

__getattr__, __dir__, __all__ = lazy_package(__name__, __file__, "etl")  # pyright: ignore[reportUnsupportedDunderAll]
