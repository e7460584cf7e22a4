"""The text that a version was made from, by the audits of the versions that read it."""

from __future__ import annotations

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


def text_accounts(catalog: Catalog | None, manifest: Manifest) -> dict[str, Account]:
    """Return the audit of each source's text.

    A mixture has the audits of its readable parents, because it reads tokens.
    """
    if manifest.mixture is None:
        return dict(manifest.accounts)
    accounts: dict[str, Account] = {}
    for source_name, source in manifest.mixture.sources.items():
        parent = parent_manifest(catalog, source.dataset, source.version)
        if parent is not None:
            accounts[source_name] = _text_account(catalog, parent)
    return accounts


def _text_account(catalog: Catalog | None, manifest: Manifest) -> Account:
    """Return the audit of a version that read text, or of its nearest ancestors."""
    if manifest.account.text_bytes:
        return manifest.account
    accounts: list[Account] = []
    for reference in manifest.parents:
        parent = parent_manifest(catalog, reference.dataset, reference.version)
        if parent is not None:
            accounts.append(_text_account(catalog, parent))
    return Account.total(accounts)


def parent_manifest(
    catalog: Catalog | None, dataset: str, version: int
) -> Manifest | None:
    """Return the manifest of a parent; None if it cannot be read.

    It may be removed, not copied with its child, or damaged.
    """
    if catalog is None:
        return None
    try:
        return catalog.manifest(dataset, version)
    except (NotFoundError, IntegrityError):
        return None
