"""The base of every configuration model, and the kinds of values that sections share.

A section is frozen, closed to unknown keys, and its errors are in our own words.
Pydantic says *that* ``zst`` is no ``Literal``; a person wants to read ::

    save.compression: got 'zst', must be 'none', 'gzip', 'lz4' or 'zstd'; did you mean 'zstd'?

Secrets are given as values in Python, by reference in files, and never printed, saved
or sent. A file names the place of a secret, and does not hold it: ``{env: HF_TOKEN}``,
an environment variable of the process that needs it, or ``{block: NAME}``, a Prefect
block, which the flows resolve.

Each section rewrites its own errors, so that a model which is built directly and a YAML
file which is loaded give the same sentences. Numbers and texts are strict:
``batch_size: yes`` or ``"8"`` is a mistake to report, not one to guess at.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, cast

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SecretStr,
    Strict,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
)

from tokenlake.base.checks import did_you_mean, mapped
from tokenlake.base.secrets import CREDENTIAL, HIDDEN, TOKEN_WORDS, remember
from tokenlake.base.shares import EXACT_SUM, shares_of, wrong_sum
from tokenlake.base.sizes import PATTERN, parse_size
from tokenlake.errors import ConfigError

_OURS: Final = "tokenlake"
UNKNOWN_KEY: Final = "tokenlake_unknown_key"
"""Type of the error about a key that a section does not have."""
_SHOWN: Final = 80
"""Number of characters of a value that a message quotes."""
# Messages of pydantic that speak of Python's types; all others are rewritten in
# general.
_RULES: Final = {
    "model_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
}
_QUOTED: Final = re.compile(r"'([^']*)'")
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1

MAX_SPLIT_NAME: Final = 32
"""Letters of the name of a split, at most."""

DATASET_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
"""Names of datasets in a store."""


def problem(message: str) -> PydanticCustomError:
    """Return an error for validators, whose message the user reads unchanged."""
    # No context is given, so braces in the message are never taken for placeholders.
    return PydanticCustomError(_OURS, cast("Any", message))


def shown(value: object) -> str:
    """Return a value as a message quotes it: at most 80 characters.

    Of a container only its type is quoted.

    A container may hold a secret.
    """
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if not isinstance(value, str | int | float | date | None):
        return f"a value of type {type(value).__name__}"
    value_text = repr(value)
    if len(value_text) <= _SHOWN:
        return value_text
    return f"{value_text[:_SHOWN]}..."


def path_of(location: tuple[int | str, ...]) -> str:
    """Return a location as the dotted key that overrides take too.

    For example: ``datasets.0.tokenizer.max_length``.
    """
    return ".".join(map(str, location))


def _sentence(
    details: ErrorDetails, keys: Collection[str], hidden: Collection[str]
) -> str:
    """Return the message of one error of pydantic in our words.

    Args:
        details: Error of pydantic.
        keys: Keys of the section.
        hidden: Keys whose values may be secrets and are never quoted.
    """
    kind = details["type"]
    value = details["input"]
    location = details["loc"]
    if kind in (_OURS, UNKNOWN_KEY):
        return details["msg"]
    if kind == "extra_forbidden":
        # The value stays out: behind a mistyped `hub_token` it would be the token.
        suggestion = did_you_mean(location[-1], keys)
        return f"unknown key{suggestion} (known: {', '.join(keys)})"
    if kind == "missing":
        return "required, but missing"
    # "Input should be ..." becomes "must be ...", which the value stands in front of.
    rule = _RULES.get(kind) or re.sub(r"^\w+ should", "must", details["msg"])
    if location and str(location[0]) in hidden:
        return f"{rule} (the value is not shown)"
    suggestion = ""
    if kind == "literal_error":
        suggestion = did_you_mean(value, _QUOTED.findall(rule))
    return f"got {shown(value)}, {rule}{suggestion}"


class Section(BaseModel):
    """A frozen group of keys.

    The text under a field is its documentation and its description in the JSON Schema.
    Wrong keys and values raise pydantic's ``ValidationError``, a ``ValueError``, which
    ``load_config`` turns into a ``ConfigError``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    hidden_values: ClassVar[frozenset[str]] = frozenset()
    """Keys whose values may be secrets: messages never quote them."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the texts under the fields as their descriptions.

        The example of a docstring is for Python only.
        """
        json_schema = handler(schema)
        section = handler.resolve_ref_schema(json_schema)
        if "description" in section:
            section["description"] = section["description"].partition("\n\nExample:")[0]
        properties = section["properties"]
        for key, description in field_texts(cls).items():
            if key in properties:
                properties[key].setdefault("description", description)
        return json_schema

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self]
    ) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            keys = tuple(cls.model_fields)
            # The input is left out: nothing that prints an error can then print a
            # secret.
            lines: list[InitErrorDetails] = []
            for details in error.errors(include_url=False):
                is_unknown_key = details["type"] in ("extra_forbidden", UNKNOWN_KEY)
                kind = UNKNOWN_KEY if is_unknown_key else _OURS
                message = _sentence(details, keys, cls.hidden_values)
                described = PydanticCustomError(kind, cast("Any", message))
                lines.append(
                    InitErrorDetails(type=described, loc=details["loc"], input=None)
                )
            raise ValidationError.from_exception_data(
                error.title, lines, hide_input=True
            ) from None


def field_texts(section: type[Section]) -> dict[str, str]:
    """Return the texts under the fields of a section, those of its bases too.

    Pydantic could read them as well, but in every process: a fifth of the time to
    import a configuration.
    """
    texts: dict[str, str] = {}
    # The class itself first: its text of a field comes before that of a base.
    for model in section.__mro__[: section.__mro__.index(Section)]:
        [class_tree] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
        # A text under a field is an expression statement behind its annotation.
        statements = cast("ast.ClassDef", class_tree).body
        for statement, next_statement in pairwise(statements):
            match statement, next_statement:
                case (
                    ast.AnnAssign(target=ast.Name(id=field_name)),
                    ast.Expr(value=ast.Constant(value=str() as field_text)),
                ):
                    texts.setdefault(field_name, inspect.cleandoc(field_text))
                case _:
                    pass
    return texts


def _index(value: object) -> object:
    """Let NumPy integers in as the ints they are.

    A bool stays bool, and is refused by Strict.
    """
    if isinstance(value, bool | int) or not hasattr(value, "__index__"):
        return value
    return operator.index(cast("Any", value))


def _size(value: object) -> int:
    """Return a size in bytes; the error of a wrong one is a problem of the section."""
    try:
        return parse_size(cast("Any", _index(value)))
    except ConfigError as error:
        raise problem(str(error)) from None


def as_text(value: object) -> object:
    """Return a path object as text, and anything else as it is."""
    if not isinstance(value, os.PathLike):
        return value
    return os.fspath(cast("os.PathLike[str]", value))


# The validator stands last and so runs first, before the strict check; the JSON Schema
# needs this order too.
_Index = BeforeValidator(_index)
Count = Annotated[int, Strict(), Gt(0), Le(_INT64), _Index]
"""A number of things, at least one."""
Length = Annotated[int, Strict(), Gt(0), Le(_INT32), _Index]
"""A number of tokens, at least one."""
TokenId = Annotated[int, Strict(), Ge(0), Le(_INT32), _Index]
Seed = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
"""A seed; 0 is one like any other."""
Step = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
Switch = Annotated[bool, Strict()]
Share = Annotated[float, Strict(), Ge(0.0), Le(1.0)]
Positive = Annotated[float, Strict(), Gt(0.0)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]


def _spelled(pattern: str, words: str, *, quote: bool = True) -> Any:
    """Return the type of texts that match `pattern`.

    Args:
        pattern: Regular expression of the whole text.
        words: Description of the texts, for messages.
        quote: False to keep the value out of messages.
    """

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            quotation = f"got {shown(value)}, " if quote else ""
            raise problem(f"{quotation}must be {words}")
        return value

    return Annotated[
        str,
        Strict(),
        AfterValidator(check),
        WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"}),
    ]


_NAME_WORDS: Final = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64 characters"

# Type checkers know these as texts: they cannot look into a call.
if TYPE_CHECKING:
    Path = DatasetName = SourceName = SplitName = VariableName = Character = (
        StoredName
    ) = str
else:
    Path = Annotated[
        _spelled(r"[^\x00]+", "a path or URL that is not empty"),
        BeforeValidator(as_text),
    ]
    DatasetName = _spelled(DATASET_NAME, f"a name of lower-case {_NAME_WORDS}")
    StoredName = _spelled(
        DATASET_NAME + r"(@v?[1-9][0-9]{0,8})?",
        "a dataset of the store: NAME, or NAME@v3 for one version",
    )
    SourceName = _spelled(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", f"a name of {_NAME_WORDS}"
    )
    SplitName = _spelled(
        rf"[A-Za-z][A-Za-z0-9_]{{0,{MAX_SPLIT_NAME - 1}}}",
        "a split name of letters, digits and '_', starting with a letter",
    )
    # Somebody may write the secret itself in the place of a variable's name: the value
    # is not quoted.
    Character = _spelled(
        r"[^\x00\r\n\"]", "one character other than a quote or an end of line"
    )
    VariableName = _spelled(
        r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", quote=False
    )

Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": PATTERN},
            ]
        }
    ),
]
"""A number of bytes, written as an int or as ``"500MB"`` (see
:mod:`tokenlake.base.sizes`).
"""


def _shares(weights: dict[str, float]) -> dict[str, float]:
    """Return weights as shares that sum to 1, as :func:`~tokenlake.base.shares.shares_of`.

    Weights whose meaning is not clear are a problem of the section.
    """
    shares = shares_of(weights)
    if shares is None:
        hint = "; give shares, percentages or ratios of whole numbers (30, 70)"
        raise problem(f"{wrong_sum('Weights', math.fsum(weights.values()))}{hint}")
    return shares


def _fractions(splits: dict[str, float]) -> dict[str, float]:
    """Return fractions that sum to 1 within 1e-6."""
    total = math.fsum(splits.values())
    if abs(total - 1.0) > EXACT_SUM:
        raise problem(wrong_sum("Splits", total))
    return splits


Weights = Annotated[
    dict[SourceName, Annotated[float, Strict(), Ge(0.0)]], AfterValidator(_shares)
]
"""Dataset name to weight: shares that sum to 1, percentages, or ratios of whole
numbers; read as shares.
"""
Splits = Annotated[
    dict[SplitName, Annotated[Positive, Le(1.0)]], AfterValidator(_fractions)
]
"""Split name to the fraction of documents it gets; the fractions sum to 1."""


_FILES_ARE: Final = "a path, glob, directory or URL, a list of them, or a mapping of split to one of these"


def _data_files(value: object) -> object:
    """Return entries of `data_files`.

    They are a text, a tuple of texts, or a mapping of split to one of these.
    """
    # Splits: each has a text or a list of its own, and no further splits.
    if isinstance(value, Mapping):
        by_split: dict[str, object] = {}
        for split, entries in cast("Mapping[object, object]", value).items():
            if not isinstance(split, str) or not split:
                raise problem(
                    f"got the key {shown(split)} of a mapping, must be {_FILES_ARE}"
                )
            if isinstance(entries, Mapping):
                raise problem(f"got a mapping under {split!r}, must be {_FILES_ARE}")
            by_split[split] = _data_files(entries)
        if not by_split:
            raise problem(f"got an empty mapping, must be {_FILES_ARE}")
        return by_split
    # One text stays a text; a list, even of one, becomes a tuple.
    is_list = isinstance(value, list | tuple)
    files: list[object] = [value]
    if is_list:
        files = cast("list[object]", value)
    texts = tuple(map(as_text, files))
    # An empty list is a problem as well, and is quoted as a list.
    for text in texts or ([],):
        if not isinstance(text, str) or not text or "\x00" in text:
            raise problem(f"got {shown(text)}, must be {_FILES_ARE}")
    if is_list:
        return texts
    return texts[0]


Files = str | tuple[str, ...]
DataFiles = Annotated[Files | dict[str, Files], BeforeValidator(_data_files)]
"""One path, glob, directory or URL, or several; a list becomes a tuple. Or such of
each split, by its name.
"""


REDACTED: Final = HIDDEN
"""Text that replaces a literal secret in a dump."""

LITERALS_REFUSED: Final = "literal_secrets_refused"
"""Key of the validation context under which a file or an override may not spell out
a secret.
"""

_HOW: Final = "write {env: NAME} or {block: NAME}, which name where the secret is kept"


class EnvSecret(Section):
    """A secret in an environment variable."""

    env: VariableName
    """Name of the environment variable."""

    hidden_values = frozenset({"env"})


class BlockSecret(Section):
    """A secret in a Prefect block. Flows resolve it; the library does not."""

    block: Text
    """Name of the block."""

    hidden_values = frozenset({"block"})


SecretValue = SecretStr | EnvSecret | BlockSecret


def _secret(value: object, _handler: object, info: ValidationInfo) -> SecretValue:
    """Return a secret or a reference; a file may hold no literal secret."""
    if isinstance(value, EnvSecret | BlockSecret):
        return value
    if isinstance(value, Mapping):
        return _reference(cast("Mapping[str, Any]", value))
    if not isinstance(value, str | SecretStr):
        raise problem(f"got a value of type {type(value).__name__} (not shown): {_HOW}")
    secret = value
    if isinstance(secret, str):
        secret = SecretStr(secret)
    # A saved configuration has the placeholder: to use it as a secret would fail later,
    # and elsewhere.
    if secret.get_secret_value() == REDACTED:
        raise problem(
            f"got {REDACTED!r}, the placeholder of a secret that was removed on saving: {_HOW}"
        )
    if isinstance(value, str) and LITERALS_REFUSED in (info.context or {}):
        raise problem(
            f"got a literal secret (not shown), which files and overrides must not contain: {_HOW}"
        )
    return secret


def _reference(value: Mapping[str, Any]) -> EnvSecret | BlockSecret:
    """Return the reference that a mapping in a file spells."""
    kinds: dict[str, type[EnvSecret | BlockSecret]] = {
        "env": EnvSecret,
        "block": BlockSecret,
    }
    # The value stays out: it may be the secret itself.
    if len(value) != 1 or not kinds.keys() >= value.keys():
        raise problem(f"got a mapping with the keys {sorted(map(str, value))}, {_HOW}")
    return kinds[next(iter(value))].model_validate(value)


def _reference_schema(key: str) -> dict[str, Any]:
    """Return the JSON Schema of a reference with one key."""
    return {
        "type": "object",
        "properties": {key: {"type": "string"}},
        "required": [key],
        "additionalProperties": False,
    }


_REFERENCES: Final[dict[str, Any]] = {
    "anyOf": [_reference_schema("env"), _reference_schema("block")]
}

Secret = Annotated[SecretValue, WrapValidator(_secret), WithJsonSchema(_REFERENCES)]
"""A secret: in Python a text or SecretStr, in files ``{env: NAME}`` or ``{block:
NAME}``.
"""


def _guarded(
    options: dict[str, Any], info: ValidationInfo, *, secret: bool = False
) -> dict[str, Any]:
    """Return options with credentials wrapped.

    Everything below a credential's key is one.
    """
    guarded_options: dict[str, Any] = {}
    for key, value in options.items():
        name = str(key)
        is_secret = secret or CREDENTIAL.search(name) is not None
        guarded_options[name] = _guard(name, value, info, secret=is_secret)
    return guarded_options


def _guard(key: str, value: Any, info: ValidationInfo, *, secret: bool) -> Any:
    """Return the value of an option, with the credentials in it wrapped."""
    # 1. Containers, whose values are options as well.
    if isinstance(value, Mapping):
        entries = cast("dict[str, Any]", value)
        if set(entries) in ({"env"}, {"block"}):
            return _reference(entries)
        return _guarded(entries, info, secret=secret)
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_guard(key, item, info, secret=secret) for item in items]
    # 2. Credentials, except for words that name a place of a token.
    is_wrapped = isinstance(value, SecretStr | EnvSecret | BlockSecret)
    if is_wrapped or (secret and isinstance(value, str)):
        if key == "token" and isinstance(value, str) and value in TOKEN_WORDS:
            return value
        try:
            return _secret(value, None, info)
        except PydanticCustomError as error:
            raise problem(f"option {key!r}: {error.message()}") from None
    # 3. Other plain values.
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise problem(
        f"option {key!r} is of type {type(value).__name__}, must be text, a number, a list or a mapping"
    )


def _dumped(value: Any, literal: Callable[[str], str]) -> Any:
    """Return options as JSON.

    Args:
        value: Options, or a part of them. References are written as in a file
            (``{"env": NAME}``).
        literal: Function of a literal secret that returns its text in the result.
    """

    def dumped(item: Any) -> Any:
        if isinstance(item, SecretStr):
            return literal(item.get_secret_value())
        if isinstance(item, Section):
            return item.model_dump()
        return item

    return mapped(value, dumped)


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON, with literal secrets in full.

    References are as in a file (``{"env": NAME}``).

    Only for the pipe to a worker process of this machine.
    """

    # The worker gets the secret, and errors about it come back as messages.
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
"""Free options for another library, JSON-like; values of credential-like keys become
secrets.
"""


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of everything that holds no other values.

    A reference to a secret is such a value, though it is a section.
    """
    entries: Iterable[tuple[Any, Any]] | None = None
    if isinstance(value, Section) and not isinstance(value, EnvSecret | BlockSecret):
        entries = value
    elif isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, list | tuple):
        entries = enumerate(cast("list[Any]", value))
    if entries is None:
        yield path, value
    for key, item in entries or ():
        yield from _leaves(item, f"{path}.{key}".lstrip("."))


def literal_secrets(value: object) -> list[str]:
    """Return the dotted keys of a configuration that hold a secret itself.

    References to secrets are not among them.

    A configuration that leaves the process, such as the parameters of a flow, must hold
    none.
    """
    return [path for path, leaf in _leaves(value) if isinstance(leaf, SecretStr)]


def references(value: object) -> Iterator[EnvSecret | BlockSecret]:
    """Yield every reference to a secret in a configuration, or in a part of it."""
    for _, leaf in _leaves(value):
        if isinstance(leaf, EnvSecret | BlockSecret):
            yield leaf


def referenced_blocks(value: object) -> list[str]:
    """Return the names of all Prefect blocks that a configuration names, each once."""
    blocks: dict[str, None] = {}
    for reference in references(value):
        if isinstance(reference, BlockSecret):
            blocks[reference.block] = None
    return list(blocks)
