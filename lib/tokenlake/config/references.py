"""References to secrets, resolved where a secret is used and at no other place.

Options travel with ``{"env": NAME}`` and ``{"block": NAME}`` left in them. The process that opens a file
system resolves them at that moment, and what comes out goes nowhere but into that file system. Values of
Prefect blocks are handed over beforehand by whoever has Prefect (:func:`provide_blocks`): the library has none.

Whatever was resolved here is remembered, so that :func:`scrub` can take it out of messages of others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.errors import ConfigError

HIDDEN: Final = "**********"
"""What stands in a message where a secret was."""

# Options of fsspec, the Hub and the clouds whose values are credentials; `pad_token` is not one of them.
CREDENTIAL: Final = re.compile(
    r"secret|passw|credential|connection_string|signature|(^|[_-])key($|[_-])|^authorization$|^cookie$|^query$"
    r"|^(hf_|api_|access_|auth_|use_auth_|session_|refresh_|sas_|bearer_)?token$",
    re.IGNORECASE,
)
_SHORTEST: Final = 4  # a shorter value would take ordinary words out of messages
# The query of a URL may be its signature, and what stands before an @ its password.
_QUERY: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s'\"<>?]+)\?[^\s'\"<>)]*", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/'\"<>@:]*):[^\s/'\"<>@]*@", re.IGNORECASE)

_BLOCKS: dict[str, str] = {}
_KNOWN: set[str] = set()


def provide_blocks(values: Mapping[str, str]) -> None:
    """Remember the values of blocks, by name, for this process and the workers that it starts."""
    _BLOCKS.update(values)
    remember(values.values())


def provided_blocks() -> dict[str, str]:
    """Return what :func:`provide_blocks` was given; for the pipe to a worker process, and nothing else."""
    return dict(_BLOCKS)


def resolve_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with every reference replaced by the secret that it names.

    Raises:
        ConfigError: a variable is not set, or nobody handed over the block.
    """
    found = {key: _resolved(item) for key, item in options.items()}
    remember(_credentials(found))
    return found


def remember(secrets: Iterable[str]) -> None:
    """Have :func:`scrub` hide these from now on."""
    _KNOWN.update(secret for secret in secrets if len(secret) >= _SHORTEST)


def known_secrets() -> frozenset[str]:
    """Return what is remembered here, for whoever looks for it in what is about to leave this machine."""
    return frozenset(_KNOWN)


def hide(message: str) -> str:
    """Return `message` without the secrets that are known here."""
    for secret in sorted(_KNOWN, key=len, reverse=True):
        message = message.replace(secret, HIDDEN)
    return message


def scrub(message: str) -> str:
    """Return the message of another library without known secrets, queries of URLs and passwords in URLs."""
    return _PASSWORD.sub(rf"\1:{HIDDEN}@", _QUERY.sub(r"\1?...", hide(message)))


def _resolved(value: Any) -> Any:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        if set(entries) == {"env"}:
            return _variable(str(entries["env"]))
        if set(entries) == {"block"}:
            return _block(str(entries["block"]))
        return {key: _resolved(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item) for item in cast("list[Any]", value)]
    return value


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        state = "is empty" if value == "" else "is not set"
        raise ConfigError(
            f"storage_options: {{env: {name}}} names an environment variable that {state} in this process; "
            f"set {name} where the build and its workers run",
            variable=name,
        )
    remember([value])
    return value


def _block(name: str) -> str:
    if name not in _BLOCKS:
        raise ConfigError(
            f"storage_options: {{block: {name}}} names a Prefect block, and only a flow loads those; run the "
            "build as a flow (`tokenlake run`, or a deployment), or write {env: NAME}",
            block=name,
        )
    return _BLOCKS[name]


def _credentials(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield every text under a key that names a credential."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _credentials(item, secret=secret or CREDENTIAL.search(key) is not None)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _credentials(item, secret=secret)
    elif secret and isinstance(value, str):
        yield value
