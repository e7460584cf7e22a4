"""The lineage of a store as boxes of lines, and arrows between lines.

A line is a version, a set of input files, an export or a statement. A box holds the
lines of one dataset that have the same column, which is the largest number of steps
from the beginning of the lineage::

    column 0           column 1             column 2
    ┌ inputs: web ─┐   ┌ web ─────────┐     ┌ pile ────────┐
    │ 12 files     │ → │ v2           │  →  │ v1           │
    │ 9 files      │ → │ v1           │     └──────────────┘
    └──────────────┘   └──────────────┘

1. Show the newest :data:`SHOWN_VERSIONS` versions of each dataset, and all versions
   that these were made from.
2. Fold all other versions of a dataset into one line, "12 older versions", which takes
   over their arrows.
3. Give each line its column, and each pair (dataset, column) a box.

A store with thousands of versions has a graph of a few lines per dataset. The index
lists every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, final

from tokenlake.base import numbers
from tokenlake.etl.reports.store_pages.contents import (
    ExportSummary,
    InputSet,
    StatementSummary,
    StoreContents,
    VersionName,
    VersionSummary,
)
from tokenlake.etl.reports.store_pages.places import dataset_place, version_page
from tokenlake.runtime.store.ledger import Parent

LineKind: TypeAlias = Literal[
    "inputs", "tokens", "rows", "mixture", "absent", "exports", "statements"
]
"""Kind of a line; ``rows``: packed or preference rows, ``absent``: a parent that is
not in the store.
"""

SHOWN_VERSIONS: Final = 6
"""Number of versions of a dataset that are always shown."""


@final
@dataclass(frozen=True, slots=True)
class GraphLine:
    """One line of a box.

    Attributes:
        key: Key of the line, by which arrows and links name it: ``code@v3``.
        kind: Kind of the line.
        title: Title of its box: a dataset, a source, or "exports of code".
        label: Text on the left.
        detail: Text on the right.
        link: Page that the line links to; "" for none.
    """

    key: str
    kind: LineKind
    title: str
    label: str
    detail: str = ""
    link: str = ""


@final
@dataclass(frozen=True, slots=True)
class GraphBox:
    """Lines of one title and column.

    Attributes:
        kind: Kind of the lines.
        title: Title.
        column: Column, 0 for the leftmost.
        lines: Lines, from top to bottom.
    """

    kind: LineKind
    title: str
    column: int
    lines: tuple[GraphLine, ...]


@final
@dataclass(frozen=True, slots=True)
class LineageGraph:
    """Boxes, and arrows between their lines.

    Attributes:
        boxes: Boxes by column, then by title.
        arrows: Pairs (key of the origin, key of the line that was made from it), each
            once.
        folded: Number of versions that have no line of their own.
    """

    boxes: tuple[GraphBox, ...]
    arrows: tuple[tuple[str, str], ...]
    folded: int


def build_graph(contents: StoreContents) -> LineageGraph:
    """Return the graph of all committed versions of a store."""
    # A version without a readable manifest has neither tokens nor parents to draw.
    versions: dict[VersionName, VersionSummary] = {}
    for version in contents.versions:
        if version.has_page:
            versions[version.name] = version
    shown = _shown_versions(versions)
    draft = _Draft()

    # Versions, the newest first, so that they are on top of their box.
    line_by_sha256: dict[str, str] = {}
    folded_by_dataset: dict[str, int] = {}
    for name in sorted(versions, reverse=True):
        version = versions[name]
        if name not in shown:
            key = _folded_key(name.dataset)
            folded_count = folded_by_dataset.get(name.dataset, 0)
            folded_by_dataset[name.dataset] = folded_count + 1
        else:
            key = str(name)
            draft.add(_version_line(version))
            for inputs in version.inputs:
                draft.add(_input_line(inputs))
                draft.connect(_input_key(inputs), key)
        line_by_sha256[version.sha256] = key
    for dataset, folded_count in folded_by_dataset.items():
        draft.add(_folded_line(dataset, folded_count))

    # Parents are found by the hash of their manifests: a version of the same name in
    # another store is not the parent. Those that are not in the store get lines, too.
    for version in versions.values():
        child = line_by_sha256[version.sha256]
        for parent in version.parents:
            origin = line_by_sha256.get(parent.sha256)
            if origin is None:
                absent_line = _absent_line(parent)
                draft.add(absent_line)
                origin = absent_line.key
            draft.connect(origin, child)

    for export in contents.exports:
        _add_export(draft, export, line_by_sha256)
    for statement in contents.statements:
        _add_statement(draft, statement, line_by_sha256)
    folded_versions = sum(folded_by_dataset.values())
    return LineageGraph(draft.boxes(), tuple(draft.arrows), folded_versions)


def _shown_versions(versions: Mapping[VersionName, VersionSummary]) -> set[VersionName]:
    """Return the newest versions of each dataset, and all that they were made from."""
    # Step 1: the newest versions. Sorted by number within each dataset.
    pending: list[VersionName] = []
    count_by_dataset: dict[str, int] = {}
    for name in sorted(versions, reverse=True):
        count = count_by_dataset.get(name.dataset, 0)
        count_by_dataset[name.dataset] = count + 1
        if count < SHOWN_VERSIONS:
            pending.append(name)

    # Step 2: their parents, the parents of these, and so on.
    shown: set[VersionName] = set()
    while pending:
        name = pending.pop()
        if name in shown or name not in versions:
            continue
        shown.add(name)
        for parent in versions[name].parents:
            pending.append(VersionName(parent.dataset, parent.version))
    return shown


@final
@dataclass(slots=True)
class _Draft:
    """A graph that grows.

    Attributes:
        lines: Lines by key, in the order of adding.
        arrows: Arrows, as keys of a dictionary that keeps their order.
    """

    lines: dict[str, GraphLine] = field(default_factory=dict[str, GraphLine])
    arrows: dict[tuple[str, str], None] = field(
        default_factory=dict[tuple[str, str], None]
    )

    def add(self, line: GraphLine) -> None:
        """Add a line, unless there is one of its key."""
        self.lines.setdefault(line.key, line)

    def connect(self, origin: str, target: str) -> None:
        """Add an arrow between two lines.

        Versions that are folded into one line have no arrow between them.
        """
        if origin != target:
            self.arrows[origin, target] = None

    def boxes(self) -> tuple[GraphBox, ...]:
        """Return the boxes of all lines, by column and title."""
        columns = _columns(self.lines, self.arrows)
        lines_by_box: dict[tuple[int, str, bool], list[GraphLine]] = {}
        # A dataset and a source can have the same title: their lines stay apart.
        for key, line in self.lines.items():
            is_version = line.kind not in ("inputs", "exports", "statements")
            box_key = (columns[key], line.title, is_version)
            lines_by_box.setdefault(box_key, []).append(line)
        boxes: list[GraphBox] = []
        for (column, title, _), lines in sorted(lines_by_box.items()):
            boxes.append(GraphBox(lines[0].kind, title, column, tuple(lines)))
        return tuple(boxes)


def _columns(
    lines: Mapping[str, GraphLine], arrows: Iterable[tuple[str, str]]
) -> dict[str, int]:
    """Return the column of each line, by its key.

    Inputs are in column 0. Every other line is right of all lines that it was made
    from, and in column 1 at least. Folding can close a circle (a@v1, b@v1 and a@v2 were
    made one from the other, and both versions of a are one line). Then the arrow that
    would close it is ignored.

    >>> columns = _columns({key: GraphLine(key, "rows", "", "") for key in "abc"}, [("a", "b"), ("b", "c"), ("a", "c")])
    >>> [columns[key] for key in "abc"]
    [1, 2, 3]
    """
    origins: dict[str, list[str]] = {key: [] for key in lines}
    for origin, target in arrows:
        origins[target].append(origin)
    columns: dict[str, int] = {}
    for root_key in lines:
        # Depth first, without recursion: lineage may be longer than Python's stack. A
        # line is on the path from the moment in which it is first seen until all of its
        # origins have columns.
        path: dict[str, None] = {}
        pending = [root_key]
        while pending:
            key = pending[-1]
            if key in columns:
                pending.pop()
                continue
            path[key] = None
            missing_origins: list[str] = []
            for origin in origins[key]:
                if origin not in columns and origin not in path:
                    missing_origins.append(origin)
            if missing_origins:
                pending += missing_origins
                continue
            # All origins have columns, but for those that would close a circle.
            column = 1
            if lines[key].kind == "inputs":
                column = 0
            for origin in origins[key]:
                if origin in columns:
                    column = max(column, columns[origin] + 1)
            columns[key] = column
            del path[key]
            pending.pop()
    return columns


def _folded_key(dataset: str) -> str:
    return f"{dataset}@older"


def _folded_line(dataset: str, versions: int) -> GraphLine:
    """Return the line of all older versions of a dataset, which links to the index."""
    return GraphLine(
        key=_folded_key(dataset),
        kind="rows",
        title=dataset,
        label=numbers.plural(versions, "older version"),
        link=dataset_place(dataset),
    )


def _absent_line(parent: Parent) -> GraphLine:
    """Return the line of a parent that is not in the store."""
    return GraphLine(
        key=f"{parent.dataset}@v{parent.version}",
        kind="absent",
        title=parent.dataset,
        label=f"v{parent.version}",
        detail="not in this store",
    )


def _input_key(inputs: InputSet) -> str:
    return f"input:{inputs.source}:{inputs.digest}"


def _input_line(inputs: InputSet) -> GraphLine:
    """Return the line of a set of input files: their number and size."""
    return GraphLine(
        key=_input_key(inputs),
        kind="inputs",
        title=f"input files: {inputs.source}",
        label=numbers.plural(inputs.files, "file"),
        detail=numbers.size(inputs.bytes),
    )


def _version_line(version: VersionSummary) -> GraphLine:
    """Return the line of a version: number and tags, and the number of its tokens."""
    # Only versions with pages have lines, and a page needs a manifest.
    assert version.totals is not None
    kind: LineKind = "rows"
    if version.kind in ("mixture", "tokens"):
        kind = version.kind
    label = f"v{version.name.version}"
    if version.tags:
        label += f" {', '.join(version.tags)}"
    detail = f"{numbers.short(version.totals.tokens)} tokens"
    return GraphLine(
        key=str(version.name),
        kind=kind,
        title=version.name.dataset,
        label=label,
        detail=detail,
        link=version_page(version.name),
    )


def _add_export(
    draft: _Draft, export: ExportSummary, line_by_sha256: Mapping[str, str]
) -> None:
    """Add an export, below the title of the dataset of its version."""
    key = f"export:{export.place}"
    origin = line_by_sha256.get(export.sha256)
    title = "exports of other stores"
    if origin is not None:
        title = f"exports of {origin.partition('@')[0]}"
    # The end of a path says more than its beginning, which the exports of a store have
    # in common.
    label = "/".join(export.place.rstrip("/").split("/")[-2:])
    draft.add(GraphLine(key, "exports", title, label, export.form))
    if origin is not None:
        draft.connect(origin, key)


def _add_statement(
    draft: _Draft, statement: StatementSummary, line_by_sha256: Mapping[str, str]
) -> None:
    """Add a statement, with an arrow from each version that it names."""
    key = f"statement:{statement.place}"
    # The second number is the step after the last one.
    first_step, end_step = statement.steps
    detail = f"steps {numbers.count(first_step)}-{numbers.count(end_step - 1)}"
    label = statement.place.rpartition("/")[2]
    draft.add(GraphLine(key, "statements", "statements", label, detail))
    for sha256 in statement.sha256s:
        origin = line_by_sha256.get(sha256)
        if origin is not None:
            draft.connect(origin, key)
