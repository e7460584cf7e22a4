"""``tokenlake ls``, ``diff``, ``tag``, ``gc`` and ``rm``: the versions of a store."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from tokenlake.base import numbers
from tokenlake.base.markup import printable
from tokenlake.cli.console import (
    AsJson,
    Name,
    StoreUrl,
    catalog_of,
    emit,
    note,
    note_unreadable,
    print_json,
    working,
)
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
from tokenlake.runtime.store.references import Reference
from tokenlake.runtime.store.remove import Kept, Removed, remove_version
from tokenlake.runtime.store.runs import unfinished
from tokenlake.runtime.store.schemes import default_store
from tokenlake.runtime.store.tags import Tag, TagChange

# Columns of `ls`, without that of the tags.
_VERSION_COLUMNS = (
    label("dataset"),
    label("version"),
    label("kind"),
    number("rows"),
    number("tokens"),
    number("documents"),
    number("bytes", "size", numbers.size),
    label("state"),
)
_SHOWN_ERROR = 160  # characters of a failed build's error: two lines of a terminal


def ls(
    name: str | None = None,
    /,
    *,
    swept: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the datasets of a store and their versions.

    A version that is still being built has no figures: readers see it once it is
    committed. Its state is `running` if something changed in the last ten minutes,
    `failed` if its last run recorded an error, otherwise `idle`. To resume it, run its
    build again. The version numbers that gc or rm removed are not used again. A version
    whose manifest is damaged is `unreadable`; the reason is printed on stderr, and
    `tokenlake verify` lists all damage.

    Args:
        name: Dataset to list. Default: all.
        swept: Also list the version numbers that gc or rm removed.
    """
    catalog = catalog_of(store)
    # One dataset, or all. A dataset whose versions were all removed is in the list only
    # with --swept.
    if name is None:
        datasets = catalog.datasets(swept=swept)
    else:
        reference = Reference.parse(name)
        if reference != Reference(reference.dataset):
            raise ConfigError(
                f"{name!r} names a version; ls lists the versions of a dataset: `tokenlake ls {reference.dataset}`; "
                f"`tokenlake show {name}` shows one of them"
            )
        datasets = [name]
    records: list[dict[str, Any]] = []
    for dataset in datasets:
        records += _version_records(catalog, dataset, swept)
    # A store without datasets is no error: JSON is an empty list.
    if json:
        print_json(records)
    elif records:
        _print_versions(records)
    else:
        note(
            f"no datasets in {catalog.store.url} yet: `tokenlake run CONFIG` builds one"
        )
    return 0


def _print_versions(records: list[dict[str, Any]]) -> None:
    """Print versions as a table; tags have a column only if there are any."""
    has_tags = any(record["tags"] for record in records)
    lines: list[dict[str, Any]] = []
    for record in records:
        as_text = {
            "version": f"v{record['version']}",
            "tags": ", ".join(record["tags"]),
            "state": _state_in_words(record),
        }
        lines.append(record | as_text)
    columns = _VERSION_COLUMNS
    if has_tags:
        columns = (*_VERSION_COLUMNS, label("tags"))
    print_tables([Table.of(columns, lines)])


def _version_records(
    catalog: Catalog, name: str, swept: bool
) -> Iterator[dict[str, Any]]:
    """Yield a record for each version of a dataset.

    Args:
        catalog: Catalog of the store.
        name: Name of the dataset.
        swept: True to include the version numbers that gc or rm removed.
    """
    # The tags are read once for all versions; a dataset without versions has none.
    infos = catalog.versions(name, swept=swept)
    tags_by_version: dict[int, list[str]] = {}
    if not all(info.swept for info in infos):
        for tag in _readable_tags(catalog, name):
            tags_by_version.setdefault(tag.version, []).append(tag.tag)
    for info in infos:
        layout = Layout(name, info.version)
        record: dict[str, Any] = {"dataset": name, "version": info.version}
        # Of a removed version only its number is left.
        if info.swept:
            yield record | {"state": "swept", "tags": []}
            continue
        if info.committed:
            record |= _committed_figures(catalog, layout)
        else:
            record |= _unfinished_figures(catalog, layout)
        yield record | {"tags": tags_by_version.get(info.version, [])}


def _committed_figures(catalog: Catalog, layout: Layout) -> dict[str, Any]:
    """Return the state, the kind and the totals of a committed version.

    An unreadable version has only a state.
    """
    manifest = catalog.readable_manifest(layout, note_unreadable)
    if manifest is None:
        return {"state": "unreadable"}
    # The end of the last run, by the storage's clock, where the storage says so.
    run_files = catalog.store.list(layout.key(RUNS))
    changes = [file.modified for file in run_files if file.modified is not None]
    seconds: float | None = None
    if changes:
        # The clocks of storage and machine may differ by more than the age.
        seconds = max(0.0, time.time() - max(changes))
    return {
        "state": "committed",
        "kind": manifest.kind,
        **asdict(manifest.totals),
        "seconds_since_change": seconds,
    }


def _unfinished_figures(catalog: Catalog, layout: Layout) -> dict[str, Any]:
    """Return the state, units and last error of a version that is not committed."""
    build = unfinished(catalog.store, layout)
    return {
        "state": build.state,
        "units_done": build.units,
        "seconds_since_change": build.seconds,
        "error": build.error,
    }


def _readable_tags(catalog: Catalog, name: str) -> list[Tag]:
    """Return the tags of a dataset; none, with a note, if they are damaged."""
    try:
        return catalog.tags(name)
    except IntegrityError as error:
        note(f"the tags of {name} are left out: {printable(str(error))}")
        return []


def _state_in_words(record: dict[str, Any]) -> str:
    """Return the state of a version in words.

    Examples: ``idle for 3 days; 7 units done``; ``failed 5 minutes ago: the first line
    of its error; 7 units done``.
    """
    state = record["state"]
    seconds = record.get("seconds_since_change")
    # A committed version has no unfinished units.
    if "units_done" not in record:
        if seconds is None:
            return state
        return f"{state} {numbers.age(seconds)} ago"

    # A build that is not committed: its state, its age and its finished units.
    age = "an unknown time"
    if seconds is not None:
        age = numbers.age(seconds)
    if state == "idle":
        words = f"idle for {age}"
    elif state == "running":
        words = f"running, last change {age} ago"
    elif state == "failed":
        full_error = record["error"] or ""
        error = textwrap.shorten(full_error, _SHOWN_ERROR, placeholder=" ...")
        words = f"failed {age} ago: {error}"
    else:
        words = f"{state} {age} ago"
    return f"{words}; {numbers.plural(record['units_done'], 'unit')} done"


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
    """Show the differences between two versions: configuration, tokenizer, inputs,
    shards, figures, weights.

    Only manifests are read. Shards are compared by their hashes: they have the same
    bytes, or the same tokens in other bytes. The card, the configuration file and the
    ledger hold names and release numbers and are not compared.

    The exit code is 0 whether the versions differ or not; with --exit-code, as in git,
    it is 1 if they differ.

    Args:
        b: The other version.
        files: List every shard that differs.
        exit_code: Exit with 1 if the versions differ.
    """
    # Columns of two versions of a dataset are called v1 and v2. Otherwise they are A
    # and B, which a line explains.
    difference = compare(a, b, store=store or default_store())
    if json:
        print_json(difference.to_json())
    else:
        console = stdout()
        console.print(sentence_of(difference))
        if headings(difference) == ("A", "B"):
            console.print(f"A is {difference.a}, B is {difference.b}")
        console.print()
        print_tables(difference_tables(difference, files=files))
        changed_shards = [pair for pair in difference.files if not pair.same]
        if changed_shards and not files:
            note(
                f"\n{numbers.plural(len(changed_shards), 'shard')} not the same: --files lists them"
            )
    if exit_code and not difference.equal:
        return 1
    return 0


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
    """Give a version a movable name, such as prod: NAME@prod then means that version.

    `tokenlake tag NAME@v3 prod` sets or moves the tag, `tokenlake tag NAME` lists the
    tags of a dataset, and `tokenlake tag NAME prod --remove` removes one. NAME alone
    means the newest committed version, NAME@TAG the version of a tag.

    A tag records the hash of its version's manifest. If the manifest is a different one
    later, reading the tag fails.

    Args:
        tag: The tag to set. Default: list the tags.
        remove: Remove the tag.
    """
    if remove:
        if tag is None or "@" in name:
            raise ConfigError(
                "--remove takes a dataset and one of its tags: `tokenlake tag NAME TAG --remove`"
            )
        # A tag whose file is damaged can be removed, too.
        version = catalog_of(store).remove_tag(name, tag)
        former = "its file was damaged"
        if version is not None:
            former = f"was v{version}"
        sentence = f"{name}@{tag} is removed ({former})"
        record = {"dataset": name, "tag": tag, "removed_from": version}
        emit(record, json, lambda: stdout().print(sentence))
    elif tag is None:
        _list_tags(catalog_of(store), name, json)
    elif "@" in tag and "@" not in name:
        raise ConfigError(
            f"the version comes before its tag: `tokenlake tag {tag} {name}`"
        )
    else:
        # Setting a tag reads the manifest, whose hash the tag records.
        change = set_tag(store or default_store(), tag, name=name)
        former_version: int | None = None
        if change.was is not None:
            former_version = change.was.version
        record = asdict(change.tag) | {
            "moved_from": former_version,
            "changed": change.changed,
        }
        emit(record, json, lambda: stdout().print(_change_in_words(change)))
    return 0


def _list_tags(catalog: Catalog, name: str, json: bool) -> None:
    """Print the tags of a dataset.

    Raises:
        ConfigError: The name has a version.
    """
    if "@" in name:
        raise ConfigError(
            f"{name!r} names a version, but tags are listed per dataset: `tokenlake tag {name.partition('@')[0]}`; "
            f"or name the tag to set: `tokenlake tag {name} TAG`"
        )
    records = [asdict(tag) for tag in catalog.tags(name)]
    if json:
        print_json(records)
    elif records:
        lines = [record | {"version": f"v{record['version']}"} for record in records]
        print_tables([Table.of(_TAG_COLUMNS, lines)])
    else:
        note(f"{name} has no tags yet: `tokenlake tag {name}@v1 prod` sets one")


def _change_in_words(change: TagChange) -> str:
    """Return the sentence about a tag that was set or moved."""
    sentence = f"{change.tag.reference} is v{change.tag.version}"
    if not change.changed:
        return f"{sentence} already"
    if change.was is None:
        return sentence
    if change.was.version == change.tag.version:
        return f"{sentence}, as before, but with a different manifest"
    return f"{sentence}; it was v{change.was.version}"


# Columns of `gc`, and its words for the kinds of files.
_REMOVED_COLUMNS = (
    label("what"),
    label("place", "where"),
    number("files"),
    number("bytes", "size", numbers.size),
)
_KINDS = {
    "temporary": "never published",
    "unfinished": "unfinished build",
    "stray": "in no manifest",
}


def gc(
    *names: str,
    grace: Annotated[str, Parameter(metavar="SPAN")] = "7d",
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove files that no version, no tag and no running build needs.

    These are temporary files and uploads that were never published, unfinished builds
    that nobody continued during the grace period, and files below a version that its
    manifest does not list. The version number of a removed build is not used again.
    Temporary files of processes of this machine that have ended are removed at once.

    Ages compare the storage's clock with this machine's. Committed versions are never
    removed.

    Args:
        names: Only these datasets. Default: all.
        grace: Minimum time since the last change of a file: 7d, 12h, 30m, 0. Default:
            7d.
        dry_run: Remove nothing; print what would be removed.
    """
    with working("looking for files that nothing needs"):
        report = collect(store or default_store(), names, grace=grace, dry_run=dry_run)
    emit(report.to_json(), json, lambda: _print_removed(report))
    # A file that could not be removed, and not one that must be kept.
    if any(file.failed for file in report.kept):
        return 1
    return 0


def _print_removed(report: GcReport) -> None:
    """Print the number and the size of the removed files by place and kind."""

    def place_and_kind(removed: Removed) -> tuple[str, str]:
        return removed.place, removed.kind

    sizes: dict[tuple[str, str], list[int]] = {}
    for removed in sorted(report.removed, key=place_and_kind):
        sizes.setdefault(place_and_kind(removed), []).append(removed.bytes)
    # An unfinished build that wrote nothing has no files.
    for swept in report.swept:
        sizes.setdefault((f"{swept.dataset}@v{swept.version}", "unfinished"), [])
    if sizes:
        rows: list[tuple[str, str, int, int]] = []
        for (place, kind), file_sizes in sizes.items():
            rows.append((_KINDS[kind], place, len(file_sizes), sum(file_sizes)))
        print_tables([Table(_REMOVED_COLUMNS, tuple(rows))])
        stdout().print()
        files = numbers.plural(len(report.removed), "file")
        verb = "removed"
        if report.dry_run:
            verb = "would be removed"
        stdout().print(
            f"{files}, {_removed_size(report.bytes, report.freed_bytes, verb)}"
        )
    else:
        stdout().print("nothing to remove")
    _note_kept(report.kept)


def _removed_size(all_bytes: int, freed_bytes: int, verb: str) -> str:
    """Return the size of removed files, and the part that frees space.

    Files that other versions share stay there, and free nothing.

    Args:
        all_bytes: Size of all removed files.
        freed_bytes: Number of bytes that the removal frees.
        verb: ``removed`` or ``would be removed``.
    """
    sentence = f"{numbers.size(all_bytes)} {verb}"
    if freed_bytes < all_bytes:
        sentence += (
            f", which frees {numbers.size(freed_bytes)}: other versions share the rest"
        )
    return sentence


def _note_kept(files: Iterable[Kept]) -> None:
    """Say on stderr which files were not removed, and the reasons."""
    for file in files:
        note(f"kept {file.name}: {file.reason}")


def rm(
    name: str,
    /,
    *,
    dry_run: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Remove a committed version; its number is never used again.

    A version is not removed while a tag names it or another version is made from it (a
    mixture, or rows packed again). Versions that only reuse its units keep their files.
    Do not remove a version that a running build mixes: the build would fail.

    Args:
        name: A version by its number: NAME@v3.
        dry_run: Remove nothing; list what would be removed.
    """
    with working(f"removing {printable(name)}"):
        report = remove_version(store or default_store(), name, dry_run=dry_run)
    # A dry run lists the files; otherwise they are gone, and their number is enough.
    lines: list[str] = []
    verb = "removed"
    if dry_run:
        verb = "would be removed"
        for removed in report.removed:
            lines.append(removed.name)
    files = numbers.plural(len(report.removed), "file")
    size = _removed_size(report.bytes, report.freed_bytes, verb)
    lines.append(f"{report.dataset}@v{report.version}: {files}, {size}")
    emit(report.to_json(), json, lambda: stdout().print("\n".join(lines)))
    _note_kept(report.kept)
    if report.kept:
        return 1
    return 0
