"""The text that a version was made from: its own account, or those of the versions
that it mixes or packs again.
"""

from __future__ import annotations

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


def text_accounts(catalog: Catalog | None, manifest: Manifest) -> dict[str, Account]:
    """Return the account of each source's text; a mixture has the accounts of its
    readable parents.
    """
    if manifest.mixture is None:
        return dict(manifest.accounts)
    accounts: dict[str, Account] = {}
    for name, source in manifest.mixture.sources.items():
        parent = parent_manifest(catalog, source.dataset, source.version)
        if parent is not None:
            accounts[name] = _text_account(catalog, parent)
    return accounts


def _text_account(catalog: Catalog | None, manifest: Manifest) -> Account:
    """Return the account of a version that read text, or the sum of its nearest
    ancestors that did.
    """
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
    """Return the manifest of a parent; None if it was removed, not copied with its
    child, or damaged.
    """
    if catalog is None:
        return None
    try:
        return catalog.manifest(dataset, version)
    except (NotFoundError, IntegrityError):
        return None
