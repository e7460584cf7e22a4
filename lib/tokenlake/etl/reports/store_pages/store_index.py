"""The first page of a store: datasets, versions, and builds that need attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tokenlake.base import numbers
from tokenlake.base.markup import Html, Part, tag, together
from tokenlake.etl.reports.html import PageScript, folded, page
from tokenlake.etl.reports.store_pages.contents import (
    StoreContents,
    VersionName,
    VersionSummary,
)
from tokenlake.etl.reports.store_pages.lineage_drawing import STYLE
from tokenlake.etl.reports.store_pages.places import (
    LINEAGE,
    dataset_id,
    lineage_place,
    rows_page,
    version_page,
)

_SCRIPT: Final = Path(__file__).with_name("index.js")
_UNFOLDED_VERSIONS: Final = 10
"""Number of versions of a dataset that are shown without a click."""


def render_index(contents: StoreContents, written: float, produced_by: str) -> str:
    """Return the page.

    Args:
        contents: Contents of the store.
        written: Time of writing, in seconds since the epoch.
        produced_by: Name and version of the program.
    """
    # A damaged version with a readable manifest is in both lists: it has a page, and it
    # needs attention.
    finished: dict[str, list[VersionSummary]] = {}
    attention: list[VersionSummary] = []
    for version in contents.versions:
        if version.has_page:
            finished.setdefault(version.name.dataset, []).append(version)
        if version.state != "committed":
            attention.append(version)

    # A section without content is left out.
    parts: list[Part] = [_tiles(contents, finished, attention)]
    for problem in contents.problems:
        parts.append(tag("p", problem, class_="problem"))
    sections: list[tuple[str, Html]] = []
    if attention:
        sections.append(("Builds and damage", _attention_list(attention)))
    sections.append(("Datasets", _datasets(finished)))
    if contents.exports or contents.statements:
        sections.append(("Exports and statements", _derived(contents)))
    trail = tag("p", "Store / ", tag("a", "Lineage", href=LINEAGE), class_="trail")
    subtitle = f"written {date_in_words(written)} by {produced_by}"
    script = PageScript(_SCRIPT)
    return page(
        contents.url,
        subtitle,
        together(parts),
        sections,
        trail=trail,
        style=STYLE,
        script=script,
    )


def date_in_words(seconds: float | None) -> str:
    """Return a time as ``2026-11-28 04:09 UTC``; "" for None.

    >>> date_in_words(0)
    '1970-01-01 00:00 UTC'
    """
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _tiles(
    contents: StoreContents,
    finished: Mapping[str, Sequence[VersionSummary]],
    attention: Sequence[VersionSummary],
) -> Html:
    """Return the main figures of the store, large and side by side."""
    stored_bytes = 0
    committed_versions = 0
    for versions in finished.values():
        committed_versions += len(versions)
        for version in versions:
            if version.totals is not None:
                stored_bytes += version.totals.bytes
    # All versions that need attention are unfinished or damaged.
    unfinished = 0
    for version in attention:
        if version.is_unfinished:
            unfinished += 1
    damaged = len(attention) - unfinished
    dataset_label = "dataset" if len(finished) == 1 else "datasets"
    figures = {
        dataset_label: numbers.count(len(finished)),
        "committed versions": numbers.count(committed_versions),
        "data files of all versions": numbers.size(stored_bytes),
        "unfinished builds": numbers.count(unfinished),
        "damaged versions": numbers.count(damaged),
    }
    boxes: list[Html] = []
    for name, value in figures.items():
        boxes.append(tag("div", tag("b", value), tag("span", name, class_="dim")))
    return tag("div", *boxes, class_="tiles")


# -- Builds and damage


def _attention_list(versions: Sequence[VersionSummary]) -> Html:
    """Return all unfinished builds and damaged versions, each with its error."""
    note = tag(
        "p",
        "To resume a build, run its configuration again. ",
        tag("code", "tokenlake verify NAME"),
        " lists all damage of a version, and ",
        tag("code", "tokenlake repair NAME"),
        " repairs it.",
        class_="dim",
    )
    return together([note, *[_attention_entry(version) for version in versions]])


def _attention_entry(version: VersionSummary) -> Html:
    """Return a build or a damaged version: name, state, last change and error."""
    # A committed version is not built in units any more.
    facts: list[str] = []
    if version.is_unfinished:
        facts.append(f"{numbers.plural(version.units, 'unit')} done")
    if version.changed is not None:
        facts.append(f"last change {date_in_words(version.changed)}")
    heading = tag(
        "p",
        tag("b", _version_name(version)),
        " ",
        _state(version.state),
        " ",
        tag("span", ", ".join(facts), class_="dim"),
    )
    error: Part = ""
    if version.error:
        error = tag("p", version.error)
    return tag("div", heading, error, class_="build")


def _version_name(version: VersionSummary) -> Part:
    if version.has_page:
        return tag("a", str(version.name), href=version_page(version.name))
    return str(version.name)


def _state(state: str) -> Html:
    return tag("span", state, class_=f"state state-{state}")


# -- Datasets


def _datasets(finished: Mapping[str, Sequence[VersionSummary]]) -> Html:
    """Return a table of versions for each dataset, the newest version first."""
    if not finished:
        return tag(
            "p",
            "There are none yet: ",
            tag("code", "tokenlake run CONFIG"),
            " builds one.",
        )
    # The search field needs the script; a browser without one does not show it.
    field = tag(
        "input", type="search", id="search", placeholder="Name, tag, kind or parent"
    )
    label = tag("label", "Search ", field)
    parts: list[Html] = [
        tag("p", label, " ", tag("span", id="count", class_="dim"), class_="script")
    ]
    for dataset, versions in finished.items():
        newest_first = sorted(versions, key=lambda version: version.name, reverse=True)
        parts.append(_dataset(dataset, newest_first))
    return together(parts)


def _dataset(dataset: str, versions: Sequence[VersionSummary]) -> Html:
    """Return the versions of a dataset; older ones open on a click."""
    number = numbers.plural(len(versions), "version")
    parts: list[Part] = [tag("h3", dataset, " ", tag("span", number, class_="dim"))]
    parts.append(_version_table(versions[:_UNFOLDED_VERSIONS]))
    older = versions[_UNFOLDED_VERSIONS:]
    if older:
        parts.append(
            folded(numbers.plural(len(older), "older version"), _version_table(older))
        )
    return tag("section", *parts, id=dataset_id(dataset), class_="dataset")


_VERSION_COLUMNS: Final = (
    ("version", "left"),
    ("", "left"),
    ("kind", "left"),
    ("tokens", "right"),
    ("rows", "right"),
    ("documents", "right"),
    ("size", "right"),
    ("shards", "right"),
    ("last run", "left"),
    ("made from", "left"),
)


def _version_table(versions: Sequence[VersionSummary]) -> Html:
    """Return a table of versions with links to their pages."""
    heads: list[Html] = []
    for heading, side in _VERSION_COLUMNS:
        heads.append(tag("th", heading, class_=side))
    rows: list[Html] = []
    for version in versions:
        rows.append(_version_row(version))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("div", table, class_="wide")


def _version_row(version: VersionSummary) -> Html:
    """Return the row of a version; the script searches its text."""
    assert version.totals is not None  # only versions with pages are in the table
    totals = version.totals
    name_parts: list[Part] = [
        tag("a", f"v{version.name.version}", href=version_page(version.name))
    ]
    # Tags are small labels behind the number, and so is a state that is not the usual
    # one.
    for tag_name in version.tags:
        name_parts += [" ", tag("span", tag_name, class_="state")]
    if version.state != "committed":
        name_parts += [" ", _state(version.state)]
    # A version was made either from parents or from input files.
    parents = [f"{parent.dataset}@v{parent.version}" for parent in version.parents]
    origin = ", ".join(parents)
    if version.inputs:
        file_count = 0
        for inputs in version.inputs:
            file_count += inputs.files
        origin = numbers.plural(file_count, "input file")
    links = [
        tag("a", "browse rows", href=rows_page(version.name)),
        " ",
        tag("a", "lineage", href=lineage_place(version.name)),
    ]
    cells = [
        tag("td", *name_parts),
        # The links come before the figures, so that a narrow window shows them.
        tag("td", *links, class_="fixed"),
        tag("td", version.kind, class_="fixed"),
        tag("td", numbers.count(totals.tokens), class_="right"),
        tag("td", numbers.count(totals.rows), class_="right"),
        tag("td", numbers.count(totals.documents), class_="right"),
        tag("td", numbers.size(totals.bytes), class_="right"),
        tag("td", numbers.count(totals.files), class_="right"),
        tag("td", date_in_words(version.changed), class_="fixed"),
        tag("td", origin, class_="origin"),
    ]
    # The script compares searched words with this text, in lower case.
    searched = " ".join([str(version.name), version.kind, *version.tags, origin])
    return tag("tr", *cells, class_="version", data_text=searched.lower())


# -- Exports and statements


def _derived(contents: StoreContents) -> Html:
    """Return exports and statements with the versions that they were made from."""
    name_by_sha256: dict[str, VersionName] = {}
    for version in contents.versions:
        if version.has_page:
            name_by_sha256[version.sha256] = version.name
    # The steps of a statement end before the second number.
    rows: list[Html] = []
    for export in contents.exports:
        files = numbers.plural(export.files, "file")
        details = f"{export.form}, {files}, {numbers.plural(export.rows, 'row')}"
        rows.append(
            _derived_row(
                "export", export.place, [export.sha256], details, name_by_sha256
            )
        )
    for statement in contents.statements:
        first_step, end_step = statement.steps
        details = f"steps {numbers.count(first_step)} to {numbers.count(end_step - 1)}, signed by {statement.key[:12]}"
        rows.append(
            _derived_row(
                "statement", statement.place, statement.sha256s, details, name_by_sha256
            )
        )
    heads = [tag("th", heading) for heading in ("kind", "place", "made from", "")]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows))
    return tag("div", table, class_="wide")


def _derived_row(
    kind: str,
    place: str,
    sha256s: Sequence[str],
    details: str,
    name_by_sha256: Mapping[str, VersionName],
) -> Html:
    """Return the row of an export or a statement.

    Versions of other stores are named by their hashes.
    """
    origins: list[Part] = []
    for sha256 in sha256s:
        if origins:
            origins.append(", ")
        name = name_by_sha256.get(sha256)
        if name is None:
            origins.append(f"a version of another store ({sha256[:12]})")
        else:
            origins.append(tag("a", str(name), href=version_page(name)))
    return tag(
        "tr",
        tag("td", kind),
        tag("td", place),
        tag("td", *origins),
        tag("td", details, class_="dim"),
    )
