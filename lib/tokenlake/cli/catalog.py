"""``tokenlake ls``, ``diff``, ``tag``, ``gc`` and ``rm``: the versions of a store, their names, and their removal."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.cli.console import AsJson, Name, StoreUrl, catalog_of, emit, note, note_unreadable, print_json
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.reports import Table, label, number
from tokenlake.etl.reports.difference import difference_tables, headings, sentence_of
from tokenlake.etl.reports.terminal import print_tables, stdout
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.catalog import tag as set_tag
from tokenlake.runtime.store.diff import diff as compare
from tokenlake.runtime.store.gc import GcReport
from tokenlake.runtime.store.gc import gc as collect
from tokenlake.runtime.store.layout import RUNS, Layout
from tokenlake.runtime.store.remove import Kept, remove_version
from tokenlake.runtime.store.runs import unfinished
from tokenlake.runtime.store.schemes import default_store
from tokenlake.runtime.store.tags import Tag, TagChange

_LISTED = (
    label("dataset"),
    label("version"),
    label("kind"),
    number("rows"),
    number("tokens"),
    number("documents"),
    number("bytes", "size", numbers.size),
    label("state"),
)
_SHOWN_ERROR = 160


def ls(
    name: str | None = None,
    /,
    *,
    swept: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the datasets of a store and their versions.

    A version that is still being built has no figures: readers see it once it is committed. Its state is `running` if
    something changed in the last ten minutes, `failed` if its last run recorded an error, otherwise `idle`. To resume
    it, run its build again. The version numbers that gc or rm removed are not used again. A version whose manifest is
    damaged is `unreadable`; what is wrong with it is said on stderr, and `tokenlake verify` has the whole picture.

    Args:
        name: Only this dataset.
        swept: List the version numbers that gc or rm removed, too.
    """
    catalog = catalog_of(store)
    names = catalog.datasets(swept=swept) if name is None else [name]
    lines = [line for each in names for line in _lines(catalog, each, swept)]
    if json:
        print_json(lines)
    elif lines:
        columns = (*_LISTED, label("tags")) if any(line["tags"] for line in lines) else _LISTED
        for line in lines:
            line |= {"version": f"v{line['version']}", "tags": ", ".join(line["tags"]), "state": _state(line)}
        print_tables([Table.of(columns, lines)])
    else:
        note(f"no datasets in {catalog.store.url} yet: `tokenlake run CONFIG` builds one")
    return 0


def _lines(catalog: Catalog, name: str, swept: bool) -> Iterator[dict[str, Any]]:
    infos = catalog.versions(name, swept=swept)
    tags = [] if all(info.swept for info in infos) else _readable_tags(catalog, name)
    for info in infos:
        line: dict[str, Any] = {"dataset": name, "version": info.version, "state": "committed"}
        layout = Layout(name, info.version)
        if info.swept:
            yield line | {"state": "swept", "tags": []}
            continue
        if info.committed:
            manifest = catalog.readable_manifest(layout, note_unreadable)
            if manifest is None:
                named = [tag.tag for tag in tags if tag.version == info.version]
                yield line | {"state": "unreadable", "tags": named}
                continue
            # How long ago the last run of it ended, by the storage's clock, where this says so.
            stored = catalog.store.list(layout.key(RUNS))
            changes = [each.modified for each in stored if each.modified is not None]
            seconds = max(0.0, time.time() - max(changes)) if changes else None
            line |= {"kind": manifest.kind, **asdict(manifest.totals), "seconds_since_change": seconds}
        else:
            found = unfinished(catalog.store, layout)
            line |= {"state": found.state, "units_done": found.units}
            line |= {"seconds_since_change": found.seconds, "error": found.error}
        yield line | {"tags": [tag.tag for tag in tags if tag.version == info.version]}


def _readable_tags(catalog: Catalog, name: str) -> list[Tag]:
    try:
        return catalog.tags(name)
    except IntegrityError as error:
        note(f"the tags of {name} are left out: {printable(str(error))}")
        return []


def _state(line: dict[str, Any]) -> str:
    """``idle for 3 days, 7 units done``; ``failed 5 minutes ago: the first line of its error, 7 units done``."""
    seconds = line.get("seconds_since_change")
    if "units_done" not in line:
        return line["state"] if seconds is None else f"{line['state']} {numbers.age(seconds)} ago"
    error = line["error"]
    age = "an unknown time" if seconds is None else numbers.age(seconds)
    said = {
        "running": f"running, last change {age} ago",
        "idle": f"idle for {age}",
        "cancelled": f"cancelled {age} ago",
        "failed": f"failed {age} ago: {textwrap.shorten(error or '', _SHOWN_ERROR, placeholder=' ...')}",
    }
    return f"{said[line['state']]}; {numbers.plural(line['units_done'], 'unit')} done"


def diff(
    a: Name,
    b: str,
    /,
    *,
    files: bool = False,
    exit_code: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Show what differs between two versions: configuration, tokenizer, inputs, shards, figures, weights.

    Only manifests are read. Shards are compared by their hashes: they have the same bytes, or the same tokens in other
    bytes. The card, the configuration file and the ledger hold names and release numbers and are not compared.

    The exit code is 0 whether the versions differ or not; with --exit-code, as in git, it is 1 if they differ.

    Args:
        b: The other version.
        files: List every shard that differs.
        exit_code: Exit with 1 if the versions differ.
    """
    found = compare(a, b, store=store or default_store())
    if json:
        print_json(found.to_json())
    else:
        console = stdout()
        console.print(sentence_of(found))
        if headings(found) == ("A", "B"):
            console.print(f"A is {found.a}, B is {found.b}")
        console.print()
        print_tables(difference_tables(found, files=files))
        unlike = sum(not pair.same for pair in found.files)
        if unlike and not files:
            note(f"\n{numbers.plural(unlike, 'shard')} not the same: --files lists them")
    return 1 if exit_code and not found.equal else 0


_TAG_COLUMNS = (label("tag"), label("version"), label("manifest_sha256", "manifest"))


def tag(
    name: Name,
    tag: str | None = None,
    /,
    *,
    remove: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Give a version a name that can move, such as prod: from then on NAME@prod means that version.

    `tokenlake tag NAME@v3 prod` sets or moves the tag, `tokenlake tag NAME` lists the tags of a dataset, and `tokenlake
    tag NAME prod --remove` removes one. NAME alone means the newest committed version, NAME@TAG the version of a tag.

    A tag records the hash of its version's manifest. If the manifest is a different one later, reading the tag fails.

    Args:
        tag: The tag to set. Default: list the tags.
        remove: Remove the tag.
    """
    if remove:
        if tag is None or "@" in name:
            raise ConfigError(
                "--remove takes a dataset and one of its tags: `tokenlake tag NAME TAG --remove`"
            )
        version = catalog_of(store).remove_tag(name, tag)
        was = "its file was damaged" if version is None else f"was v{version}"
        found = {"dataset": name, "tag": tag, "removed_from": version}
        emit(found, json, lambda: stdout().print(f"{name}@{tag} is removed ({was})"))
    elif tag is None:
        _list_tags(catalog_of(store), name, json)
    else:
        change = set_tag(store or default_store(), tag, name=name)
        before = None if change.was is None else change.was.version
        found = asdict(change.tag) | {"moved_from": before, "changed": change.changed}
        emit(found, json, lambda: stdout().print(_told(change)))
    return 0


def _list_tags(catalog: Catalog, name: str, json: bool) -> None:
    if "@" in name:
        raise ConfigError(
            f"{name!r} names a version, but tags are listed for a dataset: `tokenlake tag {name.partition('@')[0]}`; "
            f"or name the tag to set: `tokenlake tag {name} TAG`"
        )
    found = [asdict(each) for each in catalog.tags(name)]
    if json:
        print_json(found)
    elif found:
        print_tables([Table.of(_TAG_COLUMNS, [each | {"version": f"v{each['version']}"} for each in found])])
    else:
        note(f"{name} has no tags yet: `tokenlake tag {name}@v1 prod` sets one")


def _told(change: TagChange) -> str:
    what, was = f"{change.tag.reference} is v{change.tag.version}", change.was
    if not change.changed or was is None:
        return what if change.changed else f"{what} already"
    same = was.version == change.tag.version
    return f"{what}, as before, but with a different manifest" if same else f"{what}; it was v{was.version}"


_COLUMNS = (
    label("what"),
    label("place", "where"),
    number("files"),
    number("bytes", "size", numbers.size),
)
_WHAT = {"temporary": "never published", "abandoned": "abandoned build", "stray": "in no manifest"}


def gc(
    *names: str,
    grace: Annotated[str, Parameter(metavar="SPAN")] = "7d",
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove files that no version, no tag and no running build needs.

    These are temporary files and uploads that were never published, unfinished builds that nobody continued during the
    grace period, and files below a version that its manifest does not list. The version number of an abandoned build is
    not used again. Temporary files of processes of this machine that have ended are removed at once.

    Ages compare the storage's clock with this machine's. Committed versions are never removed.

    Args:
        names: Only these datasets. Default: all.
        grace: How long files must have been untouched: 7d, 12h, 30m, 0. Default: 7d.
        dry_run: Remove nothing; print what would be removed.
    """
    report = collect(store or default_store(), names, grace=grace, dry_run=dry_run)
    emit(report.to_json(), json, lambda: _print_removed(report))
    return 1 if any(each.failed for each in report.kept) else 0


def _print_removed(report: GcReport) -> None:
    sizes: dict[tuple[str, str], list[int]] = {}
    for each in sorted(report.removed, key=lambda each: (each.place, each.kind)):
        sizes.setdefault((each.place, each.kind), []).append(each.bytes)
    for swept in report.swept:  # one of which nothing was built yet has no files
        sizes.setdefault((f"{swept.dataset}@v{swept.version}", "abandoned"), [])
    if sizes:
        rows = ((_WHAT[kind], place, len(each), sum(each)) for (place, kind), each in sizes.items())
        print_tables([Table(_COLUMNS, tuple(rows))])
        stdout().print()
    files, size = numbers.plural(len(report.removed), "file"), numbers.size(report.bytes)
    verb = "would be removed" if report.dry_run else "removed"
    stdout().print(f"{files}, {size} {verb}" if sizes else "nothing to remove")
    _notes(report.kept)


def _notes(kept: Iterable[Kept]) -> None:
    for each in kept:
        note(f"kept {each.name}: {each.reason}")


def rm(
    name: str,
    /,
    *,
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove a committed version; its number is never used again.

    A version is not removed while a tag names it or another version is made from it (a mixture, or rows packed again).
    Versions that only reuse its units keep their files. Do not remove a version that a running build mixes: the build
    would fail.

    Args:
        name: A version by its number: NAME@v3.
        dry_run: Remove nothing; list what would be removed.
    """
    found = remove_version(store or default_store(), name, dry_run=dry_run)
    what = f"{numbers.plural(len(found.removed), 'file')}, {numbers.size(found.bytes)}"
    told = [each.name for each in found.removed] if dry_run else []
    told.append(f"{found.dataset}@v{found.version}: {what} {'would be removed' if dry_run else 'removed'}")
    emit(found.to_json(), json, lambda: stdout().print("\n".join(told)))
    _notes(found.kept)
    return 1 if found.kept else 0
