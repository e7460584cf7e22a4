"""What keeps a unit from being built again as it was: inputs, settings or parents that are not what they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import yaml

from tokenlake.build.mixing.planning.parents import lineage
from tokenlake.build.mixing.project import MixProject
from tokenlake.build.project import Project
from tokenlake.manifest import Manifest, UnitRecord
from tokenlake.storage.layout import CONFIG

_SHOWN = 5  # inputs that a message names


class Identity(Protocol):
    """An input file as identity knows it."""

    @property
    def source(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def token(self) -> str: ...


def planned_unit(project: Project, manifest: Manifest, unit: int, record: UnitRecord | None) -> int | None:
    """Return the index in a plan of the unit that built a version's unit; None if the plan has no such unit.

    Units are found by what they are, not by where they stand: a file that was added since moves others.
    """
    if record is not None:
        found = (planned.index for planned in project.plan.units if planned.fingerprint == record.fingerprint)
        return next(found, None)
    return (
        unit if project.plan.fingerprint == manifest.fingerprint and unit < len(project.plan.units) else None
    )


def why_not(project: Project, manifest: Manifest, record: UnitRecord | None) -> str:
    """Say what of a plan is not what a version, or one unit of which there is a record, was built from."""
    wanted = manifest.inputs if record is None else tuple(entry.file for entry in record.inputs)
    inputs = input_changes(wanted, planned_inputs(project))
    if inputs:
        return "its inputs are not what they were: " + "; ".join(inputs)
    parents = _parents(manifest, project)
    settings = parents or _differences(manifest.config, yaml.safe_load(project.preamble()[CONFIG]))
    if settings:
        return "the configuration is not what it was built with: " + "; ".join(settings[:_SHOWN])
    if record is None and (others := input_changes(manifest.inputs, planned_inputs(project), added=True)):
        return (
            "the list of inputs is not what it was, and its ledger record is damaged as well: "
            + "; ".join(others)
        )
    return (
        "the inputs are those it was built from, but cut into other units, or read with another tokenizer, other files "
        "to exclude or other code of functions; give the configuration of then with --config"
    )


def planned_inputs(project: Project) -> Iterable[Identity]:
    """Return the input files of a plan."""
    return cast("Any", project.plan).inputs


def input_changes(wanted: Iterable[Identity], got: Iterable[Identity], *, added: bool = False) -> list[str]:
    """Return a clause for each input that changed or vanished; with `added` also for those that are new."""
    there = {(file.source, file.path): file for file in got}
    known = {(file.source, file.path): file for file in wanted}
    found: list[str] = []
    for name, file in known.items():
        now = there.get(name)
        if now is None:
            found.append(f"{_name(file)} is gone; expected {_what(file)}")
        elif (now.size, now.token) != (file.size, file.token):
            found.append(f"{_name(file)} is {_what(now)}; expected {_what(file)}")
    if added:
        found += [f"{_name(file)} is new" for name, file in there.items() if name not in known]
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {more} more"] if more > 0 else found


def _name(file: Identity) -> str:
    return f"{file.path} of {file.source}"


def _what(file: Identity) -> str:
    return f"{file.size} bytes, {file.token}"


def _parents(manifest: Manifest, project: Project) -> list[str]:
    wanted = {f"{parent.dataset}@v{parent.version}": parent.sha256 for parent in manifest.parents}
    now = lineage(project.plan.parents) if isinstance(project, MixProject) else ()
    got = {f"{parent.dataset}@v{parent.version}": parent.sha256 for parent in now}
    return [
        f"its parent {name} has a manifest of sha256 {got[name]}; expected {sha256}"
        if name in got
        else f"it is made of {', '.join(got) or 'text'}; expected {name}"
        for name, sha256 in wanted.items()
        if got.get(name) != sha256
    ]


def _differences(wanted: Any, got: Any, path: str = "") -> list[str]:
    """Return a clause for each setting that differs."""
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        ours, theirs = cast("Mapping[str, Any]", wanted), cast("Mapping[str, Any]", got)
        keys = dict.fromkeys([*ours, *theirs])
        return [
            clause
            for key in keys
            for clause in _differences(ours.get(key), theirs.get(key), f"{path}.{key}".lstrip("."))
        ]
    return [] if wanted == got else [f"{path} is {got!r}; expected {wanted!r}"]
