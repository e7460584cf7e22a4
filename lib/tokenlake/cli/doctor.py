"""``tokenlake doctor``: problems of this machine that would stop a build or training.

Each check is independent, and reports an error instead of raising it: a machine with
one problem often has several.
"""

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
"""Result of a check: ``warn`` may stop a large build, ``fail`` stops any."""

_GIB: Final = 1 << 30
_LITTLE_DISK: Final = 10 * _GIB  # below this a check warns
_NO_DISK: Final = _GIB  # below this it fails
_LITTLE_MEMORY: Final = 2 * _GIB  # available; below this a check warns
_SECONDS: Final = 5.0  # for a server to answer
_EXTRAS: Final = ("cli", "etl", "train", "jax", "torch", "s3", "gcs", "metrics")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@final
@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Attributes:
        name: Subject of the check.
        state: Result of the check.
        found: Facts that were found.
        repair: Instruction that repairs it; empty where nothing is wrong.
    """

    name: str
    state: State
    found: str
    repair: str = ""


def doctor(*, store: StoreUrl = None, json: AsJson = False) -> int:
    """Check this machine: Python, packages, memory, disk, caches, the store, the Hub,
    Prefect, proxies.

    Each line states ok, warn or fail, and the fix. No secret is shown. The exit code is
    1 if something fails. On s3:// and gs:// a small object is written to the store and
    removed again, to test conditional writes.
    """
    # From the machine itself to the services that a build uses.
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
    # The instruction that repairs it stands below the facts.
    rows: list[tuple[str, str, str]] = []
    has_failed = False
    for check in checks:
        facts = check.found
        if check.repair:
            facts += f"\n{check.repair}"
        rows.append((check.state, check.name, facts))
        has_failed = has_failed or check.state == "fail"
    columns = (label("state", ""), label("name", "checked"), label("found"))
    table = Table(columns, tuple(rows))
    report = {"ok": not has_failed, "checks": [asdict(check) for check in checks]}
    emit(report, json, lambda: print_tables([table]))
    if has_failed:
        return 1
    return 0


def _python() -> Check:
    """Compare the version of Python with the supported ones."""
    supported = metadata.metadata("tokenlake")["Requires-Python"] or ""
    version = platform.python_version()
    facts = f"{version}, tokenlake {__version__}, {sys.prefix}"
    if Requirement(f"python{supported}").specifier.contains(version, prereleases=True):
        return Check("Python", "ok", facts)
    return Check("Python", "fail", facts, f"use Python {supported}")


def _packages() -> Iterator[Check]:
    """Compare installed packages with the supported versions.

    First those of every install, then those of each extra.
    """
    requirements = [Requirement(line) for line in metadata.requires("tokenlake") or ()]
    base = [requirement for requirement in requirements if requirement.marker is None]
    yield _versions("packages", base, "pip install --upgrade tokenlake", is_needed=True)

    requirements_by_extra: dict[str, list[Requirement]] = {}
    extra_counts = Counter[str]()  # package -> number of extras that require it
    for extra in _EXTRAS:
        members: list[Requirement] = []
        for requirement in requirements:
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}):
                members.append(requirement)
        requirements_by_extra[extra] = members
        extra_counts.update({requirement.name for requirement in members})

    for extra, members in requirements_by_extra.items():
        # An extra was installed if a package is installed that no other extra requires.
        is_installed = False
        for requirement in members:
            if extra_counts[requirement.name] == 1 and _version(requirement.name):
                is_installed = True
        if members:
            install = f"pip install 'tokenlake[{extra}]'"
            yield _versions(f"extra {extra}", members, install, is_needed=is_installed)


def _tokenizers() -> Iterator[Check]:
    """Report the generation of `tokenizers`, and if transformers works beside it."""
    installed = _version("tokenizers")
    if installed is None:
        return
    if exports_parts():
        facts = f"{installed}; tokenizers 1.0 encodes 20 to 35 times as fast, with the same ids"
        yield Check("tokenizers", "ok", facts, f"to use it: {FASTER}")
    else:
        yield Check("tokenizers", "ok", f"{installed}, the fast generation")
    # Transformers refuses to be imported beside a version that it does not support.
    requirement = _requirement_of("transformers", "tokenizers")
    if requirement is None:
        return
    if not requirement.specifier.contains(installed, prereleases=True):
        needed = f"{requirement.name}{requirement.specifier}"
        facts = (
            f"transformers {_version('transformers')} needs {needed}, so it cannot be imported; "
            "only tokenizers without a tokenizer.json need it"
        )
        repair = f"to convert such a tokenizer: {OLDER}"
        yield Check("transformers", "warn", facts, repair)


def _requirement_of(package: str, name: str) -> Requirement | None:
    """Return the requirement that an installed package has for another one, or None."""
    if _version(package) is None:
        return None
    for line in metadata.requires(package) or ():
        requirement = Requirement(line)
        if requirement.name == name and requirement.marker is None:
            return requirement
    return None


def _versions(
    name: str, requirements: list[Requirement], install: str, *, is_needed: bool
) -> Check:
    """Compare installed versions with the supported ones.

    Args:
        name: Subject of the check.
        requirements: Packages and their supported versions.
        install: Command that installs them.
        is_needed: False for an extra that was not installed, of which other packages
            may have brought some parts.
    """
    # Each package is missing, unsupported or fine.
    versions: dict[str, str] = {}
    missing: list[str] = []
    unsupported: list[str] = []
    for requirement in requirements:
        version = _version(requirement.name)
        if version is None:
            missing.append(requirement.name)
            continue
        versions[requirement.name] = version
        if not requirement.specifier.contains(version, prereleases=True):
            unsupported.append(
                f"{requirement.name} {version} (supported: {requirement.specifier})"
            )
    # An extra that nobody installed is no problem.
    if missing and not is_needed:
        return Check(name, "ok", f"not installed; {install}")
    installed_packages = [
        f"{package} {version}" for package, version in versions.items()
    ]
    installed = ", ".join(installed_packages)
    if not missing and not unsupported:
        return Check(name, "ok", installed)
    # A missing part breaks an extra that was installed, as another version does.
    problems = list(unsupported)
    if missing:
        problems.append(f"missing: {', '.join(dict.fromkeys(missing))}")
    return Check(name, "fail", "; ".join([*problems, installed]), install)


def _version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processors() -> Check:
    """Report the processors, the memory and the default number of workers."""
    memory = total_memory()
    free = available_memory()
    facts = numbers.plural(available_cpus(), "processor")
    if memory is not None and free is not None:
        facts += f", {numbers.size(memory)} of memory, {numbers.size(free)} available"
    facts += f"; a build has {numbers.plural(default_workers(), 'worker')} by default"
    if free is not None and free < _LITTLE_MEMORY:
        repair = "end other programs, or use fewer workers: --workers N"
        return Check("machine", "warn", facts, repair)
    return Check("machine", "ok", facts)


def _disk(name: str, folder: Path) -> Check:
    """Check the free space of the disk that a folder is on, or will be."""
    existing = nearest_folder(folder)
    free = free_bytes(folder)
    facts = f"{numbers.size(free)} free at {near(str(folder))}"
    # The folder may not exist yet: then its nearest parent must be writable.
    if not os.access(existing, os.W_OK | os.X_OK):
        repair = f"chmod u+rwx {existing}, or name another"
        return Check(name, "fail", f"{facts}; {existing} cannot be written to", repair)
    if free >= _LITTLE_DISK:
        return Check(name, "ok", facts)
    state: State = "warn"
    if free < _NO_DISK:
        state = "fail"
    return Check(name, state, facts, "free some space, or name another folder")


def _cache() -> Check:
    """Report the size of the cache and the free space of its disk."""
    folder = default_folder()
    cache_bytes = 0
    for directory, _, file_names in os.walk(folder):
        for file_name in file_names:
            cache_bytes += (Path(directory) / file_name).lstat().st_size
    disk = _disk("cache", folder)
    repair = ""
    if disk.repair:
        repair = "set TOKENLAKE_CACHE to a folder with room"
    facts = f"{numbers.size(cache_bytes)}, {disk.found}"
    return Check("cache", disk.state, facts, repair)


def _store(url: str) -> Iterator[Check]:
    """Check that the store can be read and written to.

    A bucket is checked by a trial, a folder by its rights.
    """

    def look() -> str:
        store = open_store(url)
        names = Catalog(store).datasets()
        store.preflight()
        return f"{near(store.url)}: {numbers.plural(len(names), 'dataset')}"

    yield _tried("store", look, "name the right store: --store or TOKENLAKE_STORE")
    if is_local(url):
        yield _disk("disk of the store", Path(urlsplit(url).path))


def _tried(name: str, action: Callable[[], str], repair: str) -> Check:
    """Run an action and report the facts that it returns, or its error."""
    try:
        return Check(name, "ok", action())
    except (TokenlakeError, OSError) as error:
        message, _, hint = without_credentials(str(error)).partition("\n\n")
        return Check(name, "fail", message, hint.strip() or repair)


def _hub_token() -> Check:
    """Report whether there is a token for the Hub, and never the token."""
    # The places where `huggingface_hub` looks for a token.
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    token_file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    if os.environ.get("HF_TOKEN"):
        facts = "set by HF_TOKEN"
    elif token_file.is_file():
        facts = "saved by a login"
    else:
        facts = "none: public datasets and tokenizers only; `hf auth login` saves one"
    return Check("Hub token", "ok", facts)


def _hub() -> Check:
    """Check that the Hub answers, unless its use is switched off."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    shown = without_credentials(endpoint, every_query=True)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        facts = "offline, because HF_HUB_OFFLINE is set: only its cache can be used"
        return Check("Hub", "ok", facts)
    # Any answer below 500 shows that the Hub can be reached.
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            facts = f"{shown} answers {error.code}"
            return Check("Hub", "warn", facts, "try again later")
    except (OSError, ValueError) as error:
        reason = without_credentials(str(error), every_query=True)
        facts = f"{shown} does not answer: {reason}"
        return Check("Hub", "warn", facts, "without a network: export HF_HUB_OFFLINE=1")
    return Check("Hub", "ok", f"{shown} answers")


def _prefect() -> Check:
    """Check that the Prefect server of runs answers.

    Without a server, check that a run can open a port for its own.
    """

    def look() -> str:
        url = importlib.import_module("tokenlake_flows.settings").configured_api_url()
        if url is not None:
            parts = urlsplit(url)
            port = parts.port
            if port is None:
                port = 80
                if parts.scheme == "https":
                    port = 443
            return f"{without_credentials(url)} answers on port {port}"
        # A run without a server listens on a port of its own.
        with socket.create_server(("127.0.0.1", 0)):
            return "no server is set; a run starts its own on 127.0.0.1, on a free port"

    has_flows = importlib.util.find_spec("tokenlake_flows") is not None
    if _version("prefect") is None or not has_flows:
        facts = "not installed; `tokenlake run --no-prefect` runs without it"
        return Check("Prefect", "ok", facts)
    repair = "unset PREFECT_API_URL, or start the server: prefect server start"
    return _tried("Prefect", look, repair)


def _proxies() -> Check:
    """Report the proxies.

    The requests of a run to its own server must not go through one.
    """
    settings: dict[str, str] = {}
    # Programs read either spelling.
    for variable in _PROXIES:
        value = os.environ.get(variable) or os.environ.get(variable.upper())
        if value:
            settings[variable] = value
    shown_settings: list[str] = []
    for variable, value in settings.items():
        shown_settings.append(f"{variable}={without_credentials(value)}")
    facts = ", ".join(shown_settings)
    direct_hosts = {host.strip() for host in settings.pop("no_proxy", "").split(",")}
    reaches_itself = not direct_hosts.isdisjoint({"127.0.0.1", "localhost", "*"})
    if settings and not reaches_itself:
        return Check("proxies", "warn", facts, "export NO_PROXY=127.0.0.1,localhost")
    return Check("proxies", "ok", facts or "none")
