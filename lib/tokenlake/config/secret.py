"""Secrets: given as values in Python, by reference in files, and never printed, saved or sent.

A YAML file says where a secret is, not what it is::

    hub_token: {env: HF_TOKEN}          # an environment variable of the process that needs it
    hub_token: {block: hub-credentials} # a Prefect block, resolved by the flows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, PlainSerializer, SecretStr, ValidationInfo, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError

from tokenlake.config.references import CREDENTIAL, HIDDEN, TOKEN_WORDS, remember
from tokenlake.config.section import Section, Text, VariableName, problem
from tokenlake.config.values import mapped

REDACTED: Final = HIDDEN
"""What stands in a dump where a literal secret was."""

LITERALS_REFUSED: Final = "literal_secrets_refused"
"""Key of the validation context under which a file or an override may not spell out a secret."""

_HOW: Final = "write {env: NAME} or {block: NAME}, which name where the secret is kept"


class EnvSecret(Section):
    """A secret in an environment variable."""

    env: VariableName
    """Name of the environment variable."""

    hidden_values = frozenset({"env"})


class BlockSecret(Section):
    """A secret in a Prefect block; the flows resolve it, the library never does."""

    block: Text
    """Name of the block."""

    hidden_values = frozenset({"block"})


SecretValue = SecretStr | EnvSecret | BlockSecret


def _secret(value: object, _handler: object, info: ValidationInfo) -> SecretValue:
    if isinstance(value, EnvSecret | BlockSecret):
        return value
    if isinstance(value, Mapping):
        return _reference(cast("Mapping[str, Any]", value))
    if not isinstance(value, str | SecretStr):
        raise problem(f"got a value of type {type(value).__name__} (not shown): {_HOW}")
    secret = value if isinstance(value, SecretStr) else SecretStr(value)
    if secret.get_secret_value() == REDACTED:
        raise problem(f"got {REDACTED!r}, the mark of a secret that was removed on saving: {_HOW}")
    if isinstance(value, str) and LITERALS_REFUSED in (info.context or {}):
        raise problem(f"got a literal secret (not shown), which files and overrides must not hold: {_HOW}")
    return secret


def _reference(value: Mapping[str, Any]) -> EnvSecret | BlockSecret:
    kinds: dict[str, type[EnvSecret | BlockSecret]] = {"env": EnvSecret, "block": BlockSecret}
    if len(value) != 1 or not kinds.keys() >= value.keys():
        raise problem(f"got a mapping with the keys {sorted(map(str, value))}, {_HOW}")
    return kinds[next(iter(value))].model_validate(value)


_REFERENCES: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {key: {"type": "string"}},
            "required": [key],
            "additionalProperties": False,
        }
        for key in ("env", "block")
    ]
}

Secret = Annotated[SecretValue, WrapValidator(_secret), WithJsonSchema(_REFERENCES)]
"""A secret: in Python a text or SecretStr, in files ``{env: NAME}`` or ``{block: NAME}``."""


def _guarded(options: dict[str, Any], info: ValidationInfo, *, secret: bool = False) -> dict[str, Any]:
    """Return options with credentials wrapped; below a credential's key everything is one."""
    return {
        str(key): _guard(str(key), item, info, secret=secret or CREDENTIAL.search(str(key)) is not None)
        for key, item in options.items()
    }


def _guard(key: str, value: Any, info: ValidationInfo, *, secret: bool) -> Any:
    if isinstance(value, Mapping):
        entries = cast("dict[str, Any]", value)
        is_reference = set(entries) in ({"env"}, {"block"})
        return _reference(entries) if is_reference else _guarded(entries, info, secret=secret)
    if isinstance(value, list | tuple):
        return [_guard(key, item, info, secret=secret) for item in cast("list[Any]", value)]
    if isinstance(value, SecretStr | EnvSecret | BlockSecret) or (secret and isinstance(value, str)):
        if key == "token" and isinstance(value, str) and value in TOKEN_WORDS:
            return value
        try:
            return _secret(value, None, info)
        except PydanticCustomError as error:
            raise problem(f"option {key!r}: {error.message()}") from None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise problem(
        f"option {key!r} is of type {type(value).__name__}, must be text, a number, a list or a mapping"
    )


def _dumped(value: Any, literal: Callable[[str], str]) -> Any:
    """Return options as JSON: references as a file has them (``{"env": NAME}``), of literal secrets what is asked."""

    def dumped(item: Any) -> Any:
        if isinstance(item, SecretStr):
            return literal(item.get_secret_value())
        return item.model_dump() if isinstance(item, Section) else item

    return mapped(value, dumped)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON: references as a file has them (``{"env": NAME}``), literal secrets spelled out.

    For the pipe to a worker process of this machine, and nothing else.
    """

    def spelled_out(secret: str) -> str:
        remember([secret])
        return secret

    return _dumped(dict(options), spelled_out)


Options = Annotated[
    dict[str, Any],
    AfterValidator(_guarded),
    PlainSerializer(lambda value: _dumped(value, lambda _: REDACTED), when_used="json"),
    WithJsonSchema({"type": "object"}),
]
"""Free options for another library, JSON-like; values of credential-like keys become secrets."""


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of everything in a configuration that holds no other values."""
    items: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, Section) and not isinstance(value, EnvSecret | BlockSecret):
        items = value
    elif isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, list | tuple):
        items = enumerate(cast("list[Any]", value))
    if items is None:
        yield path, value
    for key, item in items or ():
        yield from _leaves(item, f"{path}.{key}".lstrip("."))


def literal_secrets(value: object) -> list[str]:
    """Return the dotted keys of a configuration that hold a secret itself rather than a reference to it.

    Whatever leaves the process with a configuration (the parameters of a flow, say) must find none.
    """
    return [path for path, leaf in _leaves(value) if isinstance(leaf, SecretStr)]


def references(value: object) -> Iterator[EnvSecret | BlockSecret]:
    """Yield every reference to a secret that a configuration, or a part of it, holds."""
    return (leaf for _, leaf in _leaves(value) if isinstance(leaf, EnvSecret | BlockSecret))


def referenced_blocks(value: object) -> list[str]:
    """Return the names of all Prefect blocks that a configuration refers to, each once."""
    return list(dict.fromkeys(each.block for each in references(value) if isinstance(each, BlockSecret)))
