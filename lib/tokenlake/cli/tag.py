"""``tokenlake tag``: names that move, for versions that do not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from tokenlake.cli.options import AsJson, Name, StoreUrl, store_url
from tokenlake.cli.output import note, print_json, print_tables, stdout
from tokenlake.errors import ConfigError
from tokenlake.report.table import Table, label
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.tags import TagChange

_LISTED = (label("tag"), label("version"), label("manifest_sha256", "manifest"))


def tag(
    name: Name,
    tag: Annotated[str | None, Parameter(help="The tag to set. Default: list what there is.")] = None,
    /,
    *,
    remove: Annotated[bool, Parameter(negative="", show_default=False, help="Remove the tag.")] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Give a version a name that can move, such as prod: from then on NAME@prod is that version.

    `tokenlake tag NAME@v3 prod` sets or moves it, `tokenlake tag NAME` lists what there is, `tokenlake tag NAME prod
    --remove` removes it. NAME alone is the newest committed version, NAME@TAG the version of another tag.

    A tag remembers the hash of its version's manifest; where that is another one later, reading the tag fails.
    """
    catalog = Catalog(open_store(store_url(store)))
    if remove:
        _remove(catalog, name, tag, json)
    elif tag is None:
        _list(catalog, name, json)
    else:
        dataset, version = catalog.resolve(name)
        change = catalog.set_tag(dataset, tag, version)
        print_json(_as_json(change)) if json else stdout().print(_told(change))
    return 0


def _list(catalog: Catalog, name: str, json: bool) -> None:
    if "@" in name:
        raise ConfigError(
            f"{name!r} names a version, and tags are listed for a dataset: `tokenlake tag {name.partition('@')[0]}`; "
            f"or say which tag is to be set: `tokenlake tag {name} TAG`"
        )
    found = [asdict(each) for each in catalog.tags(name)]
    if json:
        print_json(found)
    elif found:
        print_tables([Table.of(_LISTED, [each | {"version": f"v{each['version']}"} for each in found])])
    else:
        note(f"{name} has no tags yet: `tokenlake tag {name}@v1 prod` makes one")


def _remove(catalog: Catalog, name: str, tag: str | None, json: bool) -> None:
    if tag is None or "@" in name:
        raise ConfigError("--remove takes a dataset and a tag of it: `tokenlake tag NAME TAG --remove`")
    version = catalog.remove_tag(name, tag)
    if json:
        print_json({"dataset": name, "tag": tag, "removed_from": version})
    else:
        was = "its file was damaged" if version is None else f"was v{version}"
        stdout().print(f"{name}@{tag} is removed ({was})")


def _as_json(change: TagChange) -> dict[str, Any]:
    was = None if change.was is None else change.was.version
    return asdict(change.tag) | {"moved_from": was, "changed": change.changed}


def _told(change: TagChange) -> str:
    what = f"{change.tag.reference} is v{change.tag.version}"
    if not change.changed:
        return f"{what} already"
    if change.was is None:
        return what
    if change.was.version == change.tag.version:
        return f"{what}, as before; its manifest was another one"
    return f"{what}; it was v{change.was.version}"
