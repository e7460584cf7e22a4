"""References to secrets, resolved only where a secret is used.

Options keep their references, ``{"env": NAME}`` and ``{"block": NAME}``, until a
process opens a file system with them. It resolves them then, and gives the secrets to
that file system only. The flows hand over the values of Prefect blocks beforehand
(:func:`provide_blocks`): the library does not know Prefect.

Every secret that was resolved here is remembered, so that :func:`scrub` can remove it
from messages of other libraries.
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
"""Text that replaces a secret in a message."""

# Options of fsspec, the Hub and the clouds whose values are credentials; `pad_token` is
# not one of them.
CREDENTIAL: Final = re.compile(
    r"secret|passw|credential|connection_string|signature|(^|[_-])key($|[_-])|^authorization$|^cookie$|^query$"
    r"|^(hf_|api_|access_|auth_|use_auth_|session_|refresh_|sas_|bearer_)?token$",
    re.IGNORECASE,
)
TOKEN_WORDS: Final = frozenset({"anon", "cloud", "google_default"})
"""Values of the option `token` that name a place where gcsfs finds a token, and are
no secrets.
"""

_SHORTEST: Final = 4
"""Length of the shortest secret that is hidden; a shorter one would remove ordinary
words from messages.
"""

# Parts of a signed query that every such query has.
_PLAIN: Final = re.compile(r"algorithm|date|expires|signedheaders", re.IGNORECASE)

_BLOCKS: dict[str, str] = {}
_KNOWN: set[str] = set()


def provide_blocks(values: Mapping[str, str]) -> None:
    """Remember the values of blocks, by name.

    They are for this process and the workers that it starts.
    """
    _BLOCKS.update(values)
    remember(values.values())


def provided_blocks() -> dict[str, str]:
    """Return the values of blocks by name; only for the pipe to a worker process."""
    return dict(_BLOCKS)


def resolve_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with every reference replaced by the secret that it names.

    Raises:
        ConfigError: A variable is not set, or the value of a block was not handed over.
    """
    resolved: dict[str, Any] = {}
    for option, value in options.items():
        resolved[option] = _resolved(value)
    # Secrets that stand there themselves are hidden as well.
    remember(_credentials(resolved))
    return resolved


def remember(secrets: Iterable[str]) -> None:
    """Make :func:`scrub` hide these secrets from now on.

    Of the query of a signed URL, the secret parts are hidden as well.
    """
    for secret in secrets:
        secret_texts = [secret]
        if "&" in secret:
            for name, value in parse_qsl(secret.lstrip("?&")):
                if SIGNED.search(name) and not _PLAIN.search(name):
                    secret_texts.append(value)
        for text in secret_texts:
            if len(text) >= _SHORTEST:
                _KNOWN.add(text)


def known_secrets() -> frozenset[str]:
    """Return the remembered secrets, to look for them in files that leave this machine."""
    return frozenset(_KNOWN)


def hide(message: str) -> str:
    """Return a message without the remembered secrets, in any spelling.

    A library may quote a secret in its message.
    """
    # A secret that holds another one goes first.
    for secret in sorted(_KNOWN, key=len, reverse=True):
        message = _spellings(secret).sub(HIDDEN, message)
    return message


def scrub(message: str) -> str:
    """Return the message of another library without secrets.

    Known secrets, queries of URLs and passwords in URLs are removed.
    """
    return without_credentials(hide(message), every_query=True)


@cache
def _spellings(secret: str) -> re.Pattern[str]:
    """Return a pattern of a secret as a URL, JSON, HTML or Python spells it.

    Each of its characters may be quoted.
    """
    # The secret itself may be quoted already, once or twice.
    plain_text = unquote(secret)
    texts = {secret, plain_text, unquote(plain_text), unquote_plus(secret)} - {""}
    longest_first = sorted(texts, key=len, reverse=True)
    patterns = ["".join(map(_spelling, text)) for text in longest_first]
    return re.compile("|".join(patterns))


@cache
def _spelling(character: str) -> str:
    """Return a pattern of the spellings of a character."""
    if character.isascii() and character.isalnum():
        return character
    # 1. The percent signs of a URL, which may be quoted themselves (%25).
    utf8_bytes = character.encode("utf-8", "surrogatepass")
    url_form = "".join(f"%(?:25)*(?i:{byte:02x})" for byte in utf8_bytes)
    # 2. The character, and its forms in HTML, shells and JSON; the longest first.
    written_forms = {
        character,
        escape(character),
        f"\\{character}",
        json.dumps(character)[1:-1],
        f"\\u{ord(character):04x}",
    }
    longest_first = sorted(written_forms, key=len, reverse=True)
    alternatives = [*map(re.escape, longest_first), url_form]
    # 3. A space and a plus sign stand for each other in forms of the web.
    if character == " ":
        alternatives.append("\\+")
    elif character == "+":
        alternatives.append(" ")
    return f"(?:{'|'.join(alternatives)})"


def _variable(name: str) -> str:
    """Return the value of an environment variable, and remember it as a secret.

    Raises:
        ConfigError: It is not set, or empty.
    """
    value = os.environ.get(name)
    if not value:
        state = "is not set" if value is None else "is empty"
        raise ConfigError(
            f"storage_options: {{env: {name}}} names an environment variable that {state} in this process; "
            f"set {name} where the build and its workers run",
            variable=name,
        )
    remember([value])
    return value


def _block(name: str) -> str:
    """Return the value of a block.

    Raises:
        ConfigError: It was not handed over.
    """
    if name not in _BLOCKS:
        raise ConfigError(
            f"storage_options: {{block: {name}}} names a Prefect block, which only flows can load; run the build as "
            "a flow (`tokenlake run`, or a deployment), or write {env: NAME}",
            block=name,
        )
    return _BLOCKS[name]


def _resolved(value: Any) -> Any:
    """Return a value of options with every reference in it replaced by its secret."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        # A reference has one key; a mapping with more is one of options.
        if set(entries) == {"env"}:
            return _variable(str(entries["env"]))
        if set(entries) == {"block"}:
            return _block(str(entries["block"]))
        resolved_entries: dict[str, Any] = {}
        for key, item in entries.items():
            resolved_entries[key] = _resolved(item)
        return resolved_entries
    if isinstance(value, list | tuple):
        return [_resolved(item) for item in cast("list[Any]", value)]
    return value


def _credentials(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield every text under a key that names a credential."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            # Everything below a credential's key is one.
            is_secret = secret or CREDENTIAL.search(key) is not None
            yield from _credentials(item, secret=is_secret)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _credentials(item, secret=secret)
    elif secret and isinstance(value, str) and value not in TOKEN_WORDS:
        yield value
