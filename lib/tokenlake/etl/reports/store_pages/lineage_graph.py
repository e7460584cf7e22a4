"""The lineage of a store as boxes of lines, and arrows between lines.

A line is a version, a set of input files, an export or a statement. A box holds the lines of one dataset that have the
same column, which is the largest number of steps from the beginning of the lineage::

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
    versions = {
        version.name: version for version in contents.versions if version.has_page
    }
    shown = _shown_versions(versions)
    draft = _Draft()

    # Versions, the newest first, so that they are on top of their box.
    line_by_sha256: dict[str, str] = {}
    folded_by_dataset: dict[str, int] = {}
    for name in sorted(versions, reverse=True):
        version = versions[name]
        if name in shown:
            key = str(name)
            draft.add(_version_line(version))
            for inputs in version.inputs:
                draft.add(_input_line(inputs))
                draft.connect(_input_key(inputs), key)
        else:
            key = _folded_key(name.dataset)
            folded_by_dataset[name.dataset] = folded_by_dataset.get(name.dataset, 0) + 1
        line_by_sha256[version.sha256] = key
    for dataset, number in folded_by_dataset.items():
        label = numbers.plural(number, "older version")
        draft.add(
            GraphLine(
                _folded_key(dataset),
                "rows",
                dataset,
                label,
                link=dataset_place(dataset),
            )
        )

    # Parents, and lines for those that are not in the store.
    for version in versions.values():
        child = line_by_sha256[version.sha256]
        for parent in version.parents:
            origin = line_by_sha256.get(parent.sha256)
            if origin is None:
                origin = f"{parent.dataset}@v{parent.version}"
                draft.add(
                    GraphLine(
                        origin,
                        "absent",
                        parent.dataset,
                        f"v{parent.version}",
                        "not in this store",
                    )
                )
            draft.connect(origin, child)

    for export in contents.exports:
        _add_export(draft, export, line_by_sha256)
    for statement in contents.statements:
        _add_statement(draft, statement, line_by_sha256)
    return LineageGraph(
        draft.boxes(), tuple(draft.arrows), sum(folded_by_dataset.values())
    )


def _shown_versions(versions: Mapping[VersionName, VersionSummary]) -> set[VersionName]:
    """Return the newest versions of each dataset, and all versions that they were
    made from.
    """
    pending: list[VersionName] = []
    count_by_dataset: dict[str, int] = {}
    for name in sorted(versions, reverse=True):
        count = count_by_dataset.get(name.dataset, 0)
        count_by_dataset[name.dataset] = count + 1
        if count < SHOWN_VERSIONS:
            pending.append(name)

    shown: set[VersionName] = set()
    while pending:
        name = pending.pop()
        if name in shown or name not in versions:
            continue
        shown.add(name)
        pending += [
            VersionName(parent.dataset, parent.version)
            for parent in versions[name].parents
        ]
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
        """Add an arrow between two lines; versions that are folded into one line
        have none.
        """
        if origin != target:
            self.arrows[origin, target] = None

    def boxes(self) -> tuple[GraphBox, ...]:
        """Return the boxes of all lines, by column and title."""
        columns = _columns(self.lines, self.arrows)
        lines_by_box: dict[tuple[int, str, bool], list[GraphLine]] = {}
        for key, line in self.lines.items():
            is_version = line.kind not in ("inputs", "exports", "statements")
            lines_by_box.setdefault((columns[key], line.title, is_version), []).append(
                line
            )
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
    for first in lines:
        # Depth first, without recursion: lineage may be longer than Python's stack. A
        # line is on the path from the moment in which it is first seen until all of its
        # origins have columns.
        path: dict[str, None] = {}
        pending = [first]
        while pending:
            key = pending[-1]
            if key in columns:
                pending.pop()
                continue
            path[key] = None
            unknown = [
                origin
                for origin in origins[key]
                if origin not in columns and origin not in path
            ]
            if unknown:
                pending += unknown
                continue
            first_column = 1
            if lines[key].kind == "inputs":
                first_column = 0
            right_of_origins = [
                columns[origin] + 1 for origin in origins[key] if origin in columns
            ]
            columns[key] = max([first_column, *right_of_origins])
            del path[key]
            pending.pop()
    return columns


def _folded_key(dataset: str) -> str:
    return f"{dataset}@older"


def _input_key(inputs: InputSet) -> str:
    return f"input:{inputs.source}:{inputs.digest}"


def _input_line(inputs: InputSet) -> GraphLine:
    label = numbers.plural(inputs.files, "file")
    return GraphLine(
        _input_key(inputs),
        "inputs",
        f"input files: {inputs.source}",
        label,
        numbers.size(inputs.bytes),
    )


def _version_line(version: VersionSummary) -> GraphLine:
    """Return the line of a version: number and tags, and the number of its tokens."""
    assert version.totals is not None
    kind: LineKind = "rows"
    if version.kind in ("mixture", "tokens"):
        kind = version.kind
    label = f"v{version.name.version}"
    if version.tags:
        label += f" {', '.join(version.tags)}"
    detail = f"{numbers.short(version.totals.tokens)} tokens"
    return GraphLine(
        str(version.name),
        kind,
        version.name.dataset,
        label,
        detail,
        version_page(version.name),
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
    first_step, end_step = statement.steps
    detail = f"steps {numbers.count(first_step)}-{numbers.count(end_step - 1)}"
    label = statement.place.rpartition("/")[2]
    draft.add(GraphLine(key, "statements", "statements", label, detail))
    for sha256 in statement.sha256s:
        origin = line_by_sha256.get(sha256)
        if origin is not None:
            draft.connect(origin, key)
