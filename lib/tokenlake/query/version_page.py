"""The page of a version among the pages of a store: its report, links and changes."""

from __future__ import annotations

from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.etl.reports import to_html
from tokenlake.etl.reports.difference import difference_tables, sentence_of
from tokenlake.etl.reports.html import lineage, manifest_sections, page, tiles
from tokenlake.etl.reports.store_pages import (
    ABOVE_VERSION,
    INDEX,
    STYLE,
    VersionName,
    lineage_place,
    rows_page,
    version_page,
)
from tokenlake.query.data_sections import data_sections
from tokenlake.query.report import ancestors_table, text_accounts
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.diff import compare
from tokenlake.runtime.store.manifest import Manifest


def render_version(
    catalog: Catalog,
    manifest: Manifest,
    previous: Manifest | None,
    *,
    problem: str = "",
) -> str:
    """Return the page of a version.

    Args:
        catalog: Catalog of the store that holds the version.
        manifest: Manifest of the version.
        previous: Manifest of the committed version before it; None for the first one,
            or if it cannot be read.
        problem: Reason why data of the version cannot be read. Then the page has the
            sections that need only manifests. Default: none.

    Raises:
        IntegrityError: A file of the version is damaged.
    """
    name = VersionName(manifest.dataset, manifest.version)
    # With damaged data the page has the sections that need only manifests.
    sections = manifest_sections(manifest, text_accounts(catalog, manifest))
    if not problem:
        sections += data_sections(catalog, manifest, with_texts=False)
    if previous is not None:
        sections.append(("Changes", _changes(previous, manifest)))
    sections.append(("Lineage", lineage(manifest, ancestors_table(catalog, manifest))))
    # The head: main figures, damage, and links to the other pages of the version.
    head: list[Part] = [tiles(manifest)]
    if problem:
        head.append(
            tag("p", f"Data of this version is damaged: {problem}", class_="problem")
        )
    head.append(_links(name))
    trail = tag(
        "p",
        tag("a", "Store", href=f"{ABOVE_VERSION}{INDEX}"),
        f" / {name}",
        class_="trail",
    )
    return page(
        f"{name.dataset} v{name.version}",
        f"of kind {manifest.kind}",
        together(head),
        sections,
        trail=trail,
        style=STYLE,
    )


def _links(name: VersionName) -> Html:
    """Return the links to the rows of the version, and to its place in the lineage."""
    rows = tag("a", "Browse decoded rows", href=f"{ABOVE_VERSION}{rows_page(name)}")
    graph = tag("a", "Lineage as a graph", href=f"{ABOVE_VERSION}{lineage_place(name)}")
    return tag("p", rows, " · ", graph, class_="links")


def _changes(previous: Manifest, manifest: Manifest) -> Html:
    """Return the difference between a version and the one before it."""
    difference = compare(previous, manifest)
    before = VersionName(previous.dataset, previous.version)
    link = tag("a", f"Page of {before}", href=f"{ABOVE_VERSION}{version_page(before)}")
    tables = [to_html(table) for table in difference_tables(difference)]
    return together([tag("p", sentence_of(difference)), *tables, tag("p", link)])
