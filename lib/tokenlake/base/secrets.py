"""References to secrets, resolved where a secret is used and at no other place.

Options travel with ``{"env": NAME}`` and ``{"block": NAME}`` left in them. The process that opens a file
system resolves them at that moment, and what comes out goes nowhere but into that file system. Values of
Prefect blocks are handed over beforehand by whoever has Prefect (:func:`provide_blocks`): the library has none.

Whatever was resolved here is remembered, so that :func:`scrub` can take it out of messages of others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, unquote_plus

from tokenlake.errors import SIGNED, ConfigError, without_credentials

HIDDEN: Final = "**********"
"""What stands in a message where a secret was."""

# Options of fsspec, the Hub and the clouds whose values are credentials; `pad_token` is not one of them.
CREDENTIAL: Final = re.compile(
    r"secret|passw|credential|connection_string|signature|(^|[_-])key($|[_-])|^authorization$|^cookie$|^query$"
    r"|^(hf_|api_|access_|auth_|use_auth_|session_|refresh_|sas_|bearer_)?token$",
    re.IGNORECASE,
)
TOKEN_WORDS: Final = frozenset({"anon", "cloud", "google_default"})
"""Values of the option `token` that say where gcsfs finds one, and are none."""

_SHORTEST: Final = 4  # a shorter value would take ordinary words out of messages
# Of the parts of a signed query those that are in every one.
_PLAIN: Final = re.compile(r"algorithm|date|expires|signedheaders", re.IGNORECASE)

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
    """Have :func:`scrub` hide these from now on; of the query of a signed URL its parts, too."""
    for secret in secrets:
        signed = parse_qsl(secret.lstrip("?&")) if "&" in secret else []
        found = [text for name, text in signed if SIGNED.search(name) and not _PLAIN.search(name)]
        _KNOWN.update(text for text in (secret, *found) if len(text) >= _SHORTEST)


def known_secrets() -> frozenset[str]:
    """Return what is remembered here, for whoever looks for it in what is about to leave this machine."""
    return frozenset(_KNOWN)


def hide(message: str) -> str:
    """Return `message` without the secrets that are known here, however a library has quoted them."""
    for secret in sorted(_KNOWN, key=len, reverse=True):
        message = _spellings(secret).sub(HIDDEN, message)
    return message


def scrub(message: str) -> str:
    """Return the message of another library without known secrets, queries of URLs and passwords in URLs."""
    return without_credentials(hide(message), every_query=True)


@cache
def _spellings(secret: str) -> re.Pattern[str]:
    """A secret in a URL, JSON, HTML or Python: as it is, or its text with each character quoted or not."""
    plain = unquote(secret)
    texts = {secret, plain, unquote(plain), unquote_plus(secret)}
    return re.compile(
        "|".join("".join(map(_spelling, text)) for text in sorted(texts, key=len, reverse=True) if text)
    )


@cache
def _spelling(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    encoded = "".join(f"%(?:25)*(?i:{byte:02x})" for byte in character.encode("utf-8", "surrogatepass"))
    written = {
        character,
        escape(character),
        f"\\{character}",
        json.dumps(character)[1:-1],
        f"\\u{ord(character):04x}",
    }
    also = {" ": ["\\+"], "+": [" "]}.get(character, [])
    return f"(?:{'|'.join([*map(re.escape, sorted(written, key=len, reverse=True)), encoded, *also])})"


def _resolved(value: Any) -> Any:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        if set(entries) == {"env"}:
            name = str(entries["env"])
            found = os.environ.get(name)
            if not found:
                state = "is empty" if found == "" else "is not set"
                raise ConfigError(
                    f"storage_options: {{env: {name}}} names an environment variable that {state} in this process; "
                    f"set {name} where the build and its workers run",
                    variable=name,
                )
            remember([found])
            return found
        if set(entries) == {"block"}:
            name = str(entries["block"])
            if name not in _BLOCKS:
                raise ConfigError(
                    f"storage_options: {{block: {name}}} names a Prefect block, and only a flow loads those; run the "
                    "build as a flow (`tokenlake run`, or a deployment), or write {env: NAME}",
                    block=name,
                )
            return _BLOCKS[name]
        return {key: _resolved(item) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item) for item in cast("list[Any]", value)]
    return value


def _credentials(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield every text under a key that names a credential."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _credentials(item, secret=secret or CREDENTIAL.search(key) is not None)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _credentials(item, secret=secret)
    elif secret and isinstance(value, str) and value not in TOKEN_WORDS:
        yield value
