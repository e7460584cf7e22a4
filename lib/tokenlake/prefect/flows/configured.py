"""The Prefect server that the user's settings name, found without importing Prefect.

Prefect reads its settings from several places and takes a second to import; whether a server of our own
must be started has to be known before.
"""

from __future__ import annotations

import http.client
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tokenlake.errors import ConfigError

#: Seconds for a running server to answer.
_ANSWER_SECONDS: Final = 5.0


def configured_api_url() -> str | None:
    """The server that the environment, a ``prefect.toml`` or the active profile names.

    Raises:
        ConfigError: it is named but does not answer.
    """
    for where, url in _named_servers():
        try:
            healthy = is_healthy(url, _ANSWER_SECONDS)
        except OSError as cause:
            healthy, why = False, str(cause)
        else:
            why = "it is not healthy"
        if healthy:
            return url
        raise ConfigError(
            f"the Prefect server {url} named by {where} does not answer ({why}): start it with"
            " `prefect server start`, or unset it and the run starts a server of its own"
        )
    return None


def _named_servers() -> Iterator[tuple[str, str]]:
    """Where a server's address is set, in Prefect's order of precedence."""
    key = "PREFECT_API_URL"
    if key in os.environ:
        # Set but empty is Prefect's way to say: none, whatever the profile says.
        if os.environ[key]:
            yield key, os.environ[key]
        return
    if url := _dotenv(Path(".env"), key):
        yield ".env", url
    if url := _lookup(_toml(Path("prefect.toml")), "api", "url"):
        yield "prefect.toml", url
    if url := _lookup(_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url"):
        yield "pyproject.toml", url
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    profiles = _toml(path)
    active = os.environ.get("PREFECT_PROFILE") or _lookup(profiles, "active")
    if active and (url := _lookup(profiles, "profiles", active, key)):
        yield f"profile {active!r} of {path}", url


def _dotenv(path: Path, key: str) -> str | None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    values = [line.removeprefix("export ").partition("=") for line in lines]
    return next((value.strip(" '\"") for name, _, value in values if name.strip() == key), None)


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError:
        return {}
    except ValueError as cause:
        raise ConfigError(f"{path} is not valid TOML: {cause}") from cause


def _lookup(table: Mapping[str, Any], *keys: str) -> str | None:
    value: Any = table
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value else None


def is_healthy(api_url: str, seconds: float) -> bool:
    """Whether a server says that it is well.

    Raises:
        OSError: nobody answers.
    """
    url = urlsplit(api_url)
    connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = connect(url.hostname or "", url.port, timeout=seconds)
    try:
        connection.request("GET", f"{url.path.rstrip('/')}/health")
        # A server that wants a password is a server that is there.
        return connection.getresponse().status in {200, 401, 403}
    except http.client.HTTPException as cause:
        raise OSError(f"not an HTTP server: {cause!r}") from cause
    finally:
        connection.close()
