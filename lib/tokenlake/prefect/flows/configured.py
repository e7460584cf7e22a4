"""The user's settings of Prefect: its environment and its profile, and never the folder that a run starts in.

Prefect itself also reads `.env`, prefect.toml and pyproject.toml of the working directory. There may lie data
of anybody, and one of the settings names a file that says what code to run.
"""

from __future__ import annotations

import http.client
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from tokenlake.errors import ConfigError

#: Seconds for a running server to answer.
_ANSWER_SECONDS: Final = 5.0


def configured_api_url() -> str | None:
    """The server that the environment or the active profile names, found without importing Prefect.

    Prefect takes a second to import; whether a server of our own must be started has to be known before.

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
    path = profiles_path()
    profiles = _toml(path)
    active = os.environ.get("PREFECT_PROFILE") or _lookup(profiles, "active")
    if active and (url := _lookup(profiles, "profiles", active, key)):
        yield f"profile {active!r} of {path}", url


def profiles_path() -> Path:
    """The file of the user's profiles, where there is one."""
    home = os.environ.get("PREFECT_HOME") or "~/.prefect"
    path = os.environ.get("PREFECT_PROFILES_PATH") or Path(home, "profiles.toml")
    return Path(path).expanduser().absolute()


def import_prefect() -> None:
    """Import Prefect, and have no file of the working directory configure it, now or later."""
    here = Path.cwd()
    # Its first import reads and applies the settings.
    with TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            from prefect.settings import base, sources
        finally:
            os.chdir(here)
    for model in _subclasses(base.PrefectBaseSettings):
        model.model_config.update(env_file=None, toml_file=None)
    # Its class for pyproject.toml has the name built in; the other one asks the model's configuration.
    base.PyprojectTomlConfigSettingsSource = sources.PrefectTomlConfigSettingsSource  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def _subclasses(model: type[Any]) -> Iterator[type[Any]]:
    yield model
    for derived in model.__subclasses__():
        yield from _subclasses(derived)


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
