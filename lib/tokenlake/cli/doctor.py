"""``tokenlake doctor``: what of this machine a build or a training run would stumble over."""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import importlib.util
import os
import platform
import socket
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, final
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from tokenlake._version import __version__
from tokenlake.base import numbers
from tokenlake.base.cache.disk import default_folder
from tokenlake.base.threads import available_cpus
from tokenlake.cli.console import AsJson, StoreUrl, emit
from tokenlake.errors import TokenlakeError, without_credentials
from tokenlake.etl.memory import available_memory, default_workers, total_memory
from tokenlake.etl.reports import Table, label
from tokenlake.etl.reports.terminal import near, print_tables
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.free_space import free_bytes, nearest_folder
from tokenlake.runtime.store.schemes import default_store, is_local
from tokenlake.runtime.tokenizer_guard.generation import FASTER, OLDER, exports_parts

State: TypeAlias = Literal["ok", "warn", "fail"]

_GIB: Final = 1 << 30
_LITTLE_DISK, _NO_DISK = 10 * _GIB, _GIB
_LITTLE_MEMORY: Final = 2 * _GIB
_SECONDS: Final = 5.0  # for a server to answer
_EXTRAS: Final = ("cli", "etl", "train", "jax", "torch", "s3", "gcs", "metrics")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@final
@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, what was found, and how to repair it; nothing where it is well."""

    name: str
    state: State
    found: str
    repair: str = ""


def doctor(*, store: StoreUrl = None, json: AsJson = False) -> int:
    """Check this machine: Python, packages, memory, disk, caches, the store, the Hub, Prefect, proxies.

    Each line says ok, warn or fail, and how to repair it. No secret is shown. The exit code is 1 if something fails. On
    s3:// and gs:// a small object is written to the store and removed again, to see that writes keep their conditions.
    """
    url = store or default_store()
    checks = [
        _python(),
        *_packages(),
        *_tokenizers(),
        _processors(),
        _disk("disk for temporary files", Path(os.environ.get("TMPDIR") or "/tmp")),
        _cache(),
        *_store(url),
        _hub_token(),
        _hub(),
        _prefect(),
        _proxies(),
    ]
    failed = any(check.state == "fail" for check in checks)
    rows = tuple((each.state, each.name, f"{each.found}\n{each.repair}".rstrip("\n")) for each in checks)
    table = Table((label("state", ""), label("name", "checked"), label("found")), rows)
    found = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    emit(found, json, lambda: print_tables([table]))
    return 1 if failed else 0


def _python() -> Check:
    wanted = metadata.metadata("tokenlake")["Requires-Python"] or ""
    fits = Requirement(f"python{wanted}").specifier.contains(platform.python_version(), prereleases=True)
    found = f"{platform.python_version()}, tokenlake {__version__}, {sys.prefix}"
    return Check("Python", "ok", found) if fits else Check("Python", "fail", found, f"use Python {wanted}")


def _packages() -> Iterator[Check]:
    """The packages that every use needs, then those of each extra, against the versions that are supported."""
    requirements = [Requirement(line) for line in metadata.requires("tokenlake") or ()]
    base = [requirement for requirement in requirements if requirement.marker is None]
    yield _versions("packages", base, "pip install --upgrade tokenlake", needed=True)
    by_extra: dict[str, list[Requirement]] = {extra: [] for extra in _EXTRAS}
    extras_of = Counter[str]()  # number of extras that ask for a package
    for extra, members in by_extra.items():
        for requirement in requirements:
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                members.append(requirement)
        extras_of.update({requirement.name for requirement in members})
    for extra, members in by_extra.items():
        # Somebody installed an extra where a package is there that no other extra asks for.
        own = [requirement for requirement in members if extras_of[requirement.name] == 1]
        is_installed = any(_version(requirement.name) for requirement in own)
        if members:
            yield _versions(
                f"extra {extra}", members, f"pip install 'tokenlake[{extra}]'", needed=is_installed
            )


def _tokenizers() -> Iterator[Check]:
    """Say which generation of `tokenizers` is installed, and whether transformers works beside it."""
    installed = _version("tokenizers")
    if installed is None:
        return
    if exports_parts():
        found = f"{installed}; tokenizers 1.0 encodes 20 to 35 times as fast, with the same ids"
        yield Check("tokenizers", "ok", found, f"to use it: {FASTER}")
    else:
        yield Check("tokenizers", "ok", f"{installed}, the fast generation")
    wanted = _requirement_of("transformers", "tokenizers")
    if wanted is not None and not wanted.specifier.contains(installed, prereleases=True):
        found = (
            f"transformers {_version('transformers')} needs {wanted.name}{wanted.specifier}, so it cannot be imported; "
            "only tokenizers without a tokenizer.json need it"
        )
        yield Check("transformers", "warn", found, f"to convert such a tokenizer: {OLDER}")


def _requirement_of(package: str, name: str) -> Requirement | None:
    """Return what an installed package requires of another one, or None."""
    if _version(package) is None:
        return None
    for line in metadata.requires(package) or ():
        requirement = Requirement(line)
        if requirement.name == name and requirement.marker is None:
            return requirement
    return None


def _versions(name: str, wanted: list[Requirement], install: str, *, needed: bool) -> Check:
    """Compare versions; of an extra that nobody asked for, others may have brought some packages."""
    there = {each.name: _version(each.name) for each in wanted}
    told = ", ".join(f"{package} {version}" for package, version in there.items() if version)
    missing = [package for package, version in there.items() if version is None]
    if missing and not needed:
        return Check(name, "ok", f"not installed; {install}")
    wrong = [
        f"{each.name} {version} (supported: {each.specifier})"
        for each in wanted
        if (version := there[each.name]) and not each.specifier.contains(version, prereleases=True)
    ]
    if wrong or missing:
        absent = [f"missing: {', '.join(missing)}"] if missing else []
        return Check(name, "fail", "; ".join([*wrong, *absent, told]), install)
    return Check(name, "ok", told)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processors() -> Check:
    memory, free = total_memory(), available_memory()
    found = numbers.plural(available_cpus(), "processor")
    if memory is not None and free is not None:
        found += f", {numbers.size(memory)} of memory, {numbers.size(free)} available"
    found += f"; a build has {numbers.plural(default_workers(), 'worker')} by default"
    if free is not None and free < _LITTLE_MEMORY:
        return Check("machine", "warn", found, "end other programs, or use fewer workers: --workers N")
    return Check("machine", "ok", found)


def _disk(name: str, folder: Path) -> Check:
    """The free space of the disk that a folder is on, or will be."""
    there = nearest_folder(folder)
    free = free_bytes(folder)
    found = f"{numbers.size(free)} free at {near(str(folder))}"
    if not os.access(there, os.W_OK | os.X_OK):
        repair = f"chmod u+rwx {there}, or name another"
        return Check(name, "fail", f"{found}; {there} cannot be written to", repair)
    if free >= _LITTLE_DISK:
        return Check(name, "ok", found)
    state = "fail" if free < _NO_DISK else "warn"
    return Check(name, state, found, "free some space, or name another folder")


def _cache() -> Check:
    folder = default_folder()
    taken = sum((Path(place) / name).lstat().st_size for place, _, names in os.walk(folder) for name in names)
    disk = _disk("cache", folder)
    repair = disk.repair and "set TOKENLAKE_CACHE to a folder with room"
    return Check("cache", disk.state, f"{numbers.size(taken)}, {disk.found}", repair)


def _store(url: str) -> Iterator[Check]:
    """Whether the store can be read, and written to: of a bucket by a trial, of a folder by its rights."""

    def look() -> str:
        store = open_store(url)
        names = Catalog(store).datasets()
        store.preflight()
        return f"{near(store.url)}: {numbers.plural(len(names), 'dataset')}"

    yield _tried("store", look, "name the right one: --store or TOKENLAKE_STORE")
    if is_local(url):
        yield _disk("disk of the store", Path(urlsplit(url).path))


def _tried(name: str, action: Callable[[], str], repair: str) -> Check:
    """What an action returns, or its error."""
    try:
        return Check(name, "ok", action())
    except (TokenlakeError, OSError) as error:
        message, _, hint = without_credentials(str(error)).partition("\n\n")
        return Check(name, "fail", message, hint.strip() or repair)


def _hub_token() -> Check:
    """Whether there is a token for the Hub; never which."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    found = "none: public datasets and tokenizers only; `hf auth login` saves one"
    if Path(os.environ.get("HF_TOKEN_PATH") or home / "token").is_file():
        found = "saved by a login"
    return Check("Hub token", "ok", "set by HF_TOKEN" if os.environ.get("HF_TOKEN") else found)


def _hub() -> Check:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    shown = without_credentials(endpoint, every_query=True)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return Check("Hub", "ok", "offline, as HF_HUB_OFFLINE says: only what is in its cache can be used")
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            return Check("Hub", "warn", f"{shown} answers {error.code}", "try again later")
    except (OSError, ValueError) as error:
        told = f"{shown} does not answer: {without_credentials(str(error), every_query=True)}"
        return Check("Hub", "warn", told, "without a network: export HF_HUB_OFFLINE=1")
    return Check("Hub", "ok", f"{shown} answers")


def _prefect() -> Check:
    """The server that runs would use, and whether it answers; without one, whether a run can open a port."""

    def look() -> str:
        url = importlib.import_module("tokenlake_flows.settings").configured_api_url()
        if url is not None:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return f"{without_credentials(url)} answers on port {port}"
        with socket.create_server(("127.0.0.1", 0)):
            return "no server is set; a run starts one of its own on 127.0.0.1, on a free port"

    if _version("prefect") is None or importlib.util.find_spec("tokenlake_flows") is None:
        return Check("Prefect", "ok", "not installed; `tokenlake run --no-prefect` needs none")
    return _tried("Prefect", look, "unset PREFECT_API_URL, or start the server: prefect server start")


def _proxies() -> Check:
    """Variables that send requests elsewhere; those of a run to its own server must not go there."""
    known = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES}
    found = ", ".join(f"{name}={without_credentials(value)}" for name, value in known.items() if value)
    past = {each.strip() for each in (known.pop("no_proxy") or "").split(",")}
    if any(known.values()) and not {"127.0.0.1", "localhost", "*"} & past:
        return Check("proxies", "warn", found, "export NO_PROXY=127.0.0.1,localhost")
    return Check("proxies", "ok", found or "none")
