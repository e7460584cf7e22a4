"""Prefect's settings, read without importing Prefect, and the import itself.

Settings come from the environment and the user's profile. Prefect itself also reads
`.env`, prefect.toml and pyproject.toml of the working directory. They may be files of
other people, and one of the settings names a file with code to run.
:func:`import_prefect` keeps Prefect from reading these files.
"""

from __future__ import annotations

import http.client
import importlib
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from tokenlake.errors import ConfigError

_ANSWER_SECONDS: Final = 5.0
"""Longest time for a running server to answer."""


def configured_api_url() -> str | None:
    """Return the server that the environment or the active profile names.

    Prefect is not imported, because that takes a second: the server of a run must start
    before it, if none is configured.

    Returns:
        URL of the API of the server; None if no server is named.

    Raises:
        ConfigError: The server does not answer.
    """
    for setting_name, url in _named_servers():
        reason = "its health check fails"
        try:
            if is_healthy(url, _ANSWER_SECONDS):
                return url
        except OSError as cause:
            reason = str(cause)
        raise ConfigError(
            f"the Prefect server {url} named by {setting_name} does not answer ({reason}): start it with "
            "`prefect server start`, or unset it, and the run starts its own server"
        )
    return None


def _named_servers() -> Iterator[tuple[str, str]]:
    """Yield the names of settings with a server's address, and the address.

    The order is that of their precedence in Prefect.
    """
    key = "PREFECT_API_URL"
    if key in os.environ:
        # An empty variable stands for no server, also if the profile names one.
        if os.environ[key]:
            yield key, os.environ[key]
        return
    path = profiles_path()
    profiles: dict[str, Any] = {}
    with suppress(OSError):
        try:
            profiles = tomllib.loads(path.read_text("utf-8"))
        except ValueError as cause:
            raise ConfigError(f"{path} is not valid TOML: {cause}") from cause
    active = os.environ.get("PREFECT_PROFILE") or _lookup(profiles, "active")
    url = _lookup(profiles, "profiles", active, key) if active else None
    if url:
        yield f"profile {active!r} of {path}", url


def prefect_home() -> Path:
    """Return the folder of Prefect's own files, such as the database of a server."""
    return Path(_expanded(os.environ.get("PREFECT_HOME") or "~/.prefect")).absolute()


def _expanded(path: str) -> str:
    """Return a path with `~` replaced by the home folder."""
    # Unlike pathlib, it returns the path unchanged if the user has no home.
    return os.path.expanduser(path)  # noqa: PTH111


def profiles_path() -> Path:
    """Return the file of the user's profiles, which need not exist."""
    path = os.environ.get("PREFECT_PROFILES_PATH")
    if path:
        return Path(_expanded(path)).absolute()
    return prefect_home() / "profiles.toml"


def require_prefect_home() -> None:
    """Create the folder that the server of a run needs.

    Raises:
        ConfigError: The folder cannot be created or written.
    """
    home = prefect_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Only an attempt shows whether a file can be created: permissions say nothing
        # about read-only file systems.
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise ConfigError(
            f"Prefect keeps the records of runs in {home}, which cannot be written ({error.strerror}): set "
            "PREFECT_HOME to a writable folder, or run with --no-prefect",
            key="PREFECT_HOME",
        ) from error


def import_prefect() -> None:
    """Import Prefect in an empty folder.

    Files of the working directory then do not configure it. The first import reads the
    settings, once for the whole process. A process that has imported Prefect before
    keeps its settings.
    """
    working_folder = Path.cwd()
    with TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            importlib.import_module("prefect.settings")
            importlib.import_module("prefect.context")
        finally:
            os.chdir(working_folder)


def _lookup(table: Mapping[str, Any], *keys: str) -> str | None:
    """Return the text at a path of keys; None if it is missing or empty."""
    value: Any = table
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value else None


def is_healthy(api_url: str, seconds: float) -> bool:
    """Return whether the health check of a server succeeds.

    Args:
        api_url: URL of its API.
        seconds: Longest time for the answer.

    Raises:
        OSError: The server does not answer.
    """
    url = urlsplit(api_url)
    connect = http.client.HTTPConnection
    if url.scheme == "https":
        connect = http.client.HTTPSConnection
    connection = connect(url.hostname or "", url.port, timeout=seconds)
    try:
        connection.request("GET", f"{url.path.rstrip('/')}/health")
        # A server that requires a password is running.
        return connection.getresponse().status in {200, 401, 403}
    except http.client.HTTPException as cause:
        raise OSError(f"not an HTTP server: {cause!r}") from cause
    finally:
        connection.close()
