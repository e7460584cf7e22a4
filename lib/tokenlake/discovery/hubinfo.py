"""What a dataset's repository on the Hub says of its subsets and splits; no data is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tokenlake.config.resolved import ResolvedSource
from tokenlake.discovery.inspection import Finding, Split
from tokenlake.sources.hub.api import parse_id
from tokenlake.sources.hub.http import HubClient
from tokenlake.sources.hub.selection import HubListing, list_repo, listed

_DEFAULT_SPLIT: Final = "train"


@final
@dataclass(frozen=True, slots=True)
class HubFacts:
    """Subsets and splits, and which of them a look is at.

    Attributes:
        configs: all subsets, in the order of the card or the names.
        splits: of the subset looked at.
        subset, split: what is looked at: as asked, else the default ones, else the first there are.
        remarks: where it is the first of several and not the default.
    """

    configs: tuple[str, ...]
    splits: tuple[Split, ...]
    subset: str | None
    split: str
    remarks: tuple[Finding, ...]


def hub_facts(source: ResolvedSource, split: str | None) -> HubFacts:
    """Ask the Hub; of several ids, the first says which subsets and splits there are.

    Args:
        source: of type ``hub``.
        split: what was asked for, None for nothing.

    Raises:
        SourceNotFoundError: no such dataset or revision.
        ConfigError: the entry is no id, or nothing in the repository can be read.
        SourceError: the Hub refuses, or cannot be reached.
    """
    listing = list_repo(HubClient(source.storage_options), parse_id(source.data_files[0]))
    subsets = listing.layout.subsets
    subset, remarks = source.subset or listing.layout.default, list[Finding]()
    if subset is None and subsets:
        subset = next(iter(subsets))
        remarks.append(_first_of("subset", subset, tuple(subsets)))
    splits = _splits(listing, subset)
    names = tuple(each.name for each in splits)
    chosen = split or (_DEFAULT_SPLIT if _DEFAULT_SPLIT in names or not names else names[0])
    if split is None and names and chosen != _DEFAULT_SPLIT:
        remarks.append(_first_of("split", chosen, names))
    return HubFacts(tuple(subsets), splits, subset, chosen, tuple(remarks))


def _splits(listing: HubListing, subset: str | None) -> tuple[Split, ...]:
    layout = listing.layout.subsets.get(subset or "", {})
    return tuple(
        Split(
            name=name,
            files=len(paths),
            bytes=sum(listing.files[path].size for path in paths if path in listing.files),
        )
        for name, paths in layout.items()
    )


def _first_of(what: str, name: str, names: tuple[str, ...]) -> Finding:
    told = f"this is {what} {name!r}, the first of {listed(names)}: none of them is the default one"
    return Finding(file="", what=told)
