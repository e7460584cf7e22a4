"""The shape of a tokenizer's files, checked before anything else reads them.

The checks are about types and sizes alone: every later reader may then rely on them.
Whether the parts of a tokenizer.json fit each other is for `tokenizers` to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from tokenlake.errors import TokenizerError

TOKENIZER_JSON: Final = "tokenizer.json"
MAX_FILE_BYTES: Final = 128 << 20
"""Most bytes of a tokenizer.json or of a file beside it. The largest vocabularies (a
million pieces) take half.
"""
MAX_CONTAINERS: Final = 8 << 20
"""Most arrays and objects of a tokenizer.json: each takes at least 56 bytes when it
is parsed.
"""
MAX_ID: Final = (1 << 31) - 1
"""Largest id that int32 holds, the type of ids in a dataset."""
MAX_DEPTH: Final = 32
"""Most levels of nested stages, such as Sequence in Sequence."""
MAX_STAGE_VALUES: Final = 100_000
"""Most values in one of the four stages; a post-processor may list some hundred
tokens.
"""
MAX_TOKEN_TEXT: Final = 8192
"""Most characters of an added token, and of a token that tokenizer_config.json
names.
"""
MAX_ADDED_TEXT: Final = 16 << 20
"""Most characters of all added tokens together."""

STAGES: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "cls_token",
    "sep_token",
    "mask_token",
)
_ID_KEYS: Final = frozenset(("id", "ids", "sep", "cls"))
_SHOWN: Final = 60


def parse_json_object(name: str, file: str, data: bytes) -> dict[str, Any]:
    """Return the object that a JSON file of a tokenizer holds.

    Args:
        name: name of the tokenizer, for messages.
        file: name of the file, for messages.
        data: content of the file.

    Raises:
        TokenizerError: the file is too large, is not JSON, is nested too deep, or does
            not hold an object.
    """
    require_size(name, file, len(data))
    containers = data.count(b"[") + data.count(b"{")
    if containers > MAX_CONTAINERS:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} has {containers:,} arrays and objects, expected at most {MAX_CONTAINERS:,}",
            tokenizer=name,
            file=file,
        )
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Other encodings, half of a surrogate pair, NaN: Python's own parser knows
        # more.
        value = _parsed_by_python(name, file, data)
    if not isinstance(value, dict):
        raise TokenizerError(
            f"tokenizer {name!r}: {file} holds a {type(value).__name__}, expected an object",
            tokenizer=name,
            file=file,
        )
    return cast("dict[str, Any]", value)


def require_size(name: str, file: str, size: int) -> None:
    """Raise TokenizerError if a file of a tokenizer has more than
    :data:`MAX_FILE_BYTES`; for use before it is read.
    """
    if size > MAX_FILE_BYTES:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} has {size:,} bytes, expected at most {MAX_FILE_BYTES:,}",
            tokenizer=name,
            file=file,
        )


def _parsed_by_python(name: str, file: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} is nested too deeply, expected at most {MAX_DEPTH} levels",
            tokenizer=name,
            file=file,
        ) from error
    except ValueError as error:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} is not valid JSON: {error}",
            tokenizer=name,
            file=file,
        ) from error


def require_tokenizer_shape(name: str, spec: Mapping[str, Any]) -> None:
    """Check the types and sizes in a parsed tokenizer.json.

    Raises:
        TokenizerError: a part has another type than it must have, an id does not fit
            into int32, or an added token is too long. The message names the part.
    """
    _require_model_shape(name, spec.get("model", {}))
    _require_added_tokens_shape(name, spec.get("added_tokens"))
    for stage in STAGES:
        _require_stage_shape(name, stage, spec.get(stage))


def require_config_shape(name: str, file: str, config: Mapping[str, Any]) -> None:
    """Check the tokens that tokenizer_config.json or special_tokens_map.json names.

    Raises:
        TokenizerError: one is neither a text nor an object with a text as its content,
            or it is too long.
    """
    for key in NAMED_TOKENS:
        value = config.get(key)
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("content")
            if value is None:
                raise _wrong(
                    name,
                    file,
                    key,
                    "an object without a content",
                    "a text, or {content: text}",
                )
        if value is None:
            continue
        if not isinstance(value, str):
            raise _wrong(
                name, file, key, shown(value), "a text, {content: text} or null"
            )
        if len(value) > MAX_TOKEN_TEXT:
            raise _wrong(
                name,
                file,
                key,
                f"{len(value):,} characters",
                f"at most {MAX_TOKEN_TEXT:,} characters",
            )


def shown(value: object) -> str:
    """Return the type of a JSON value and the beginning of its text, for messages."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else ""
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."
    return f"{type(value).__name__} {text}".strip()


def largest_id(spec: Mapping[str, Any]) -> int:
    """Return the largest id of the vocabulary and the added tokens of a checked
    tokenizer.json, -1 without any.
    """
    vocab: Any = spec.get("model", {}).get("vocab") or {}
    largest = len(vocab) - 1
    if isinstance(vocab, dict):
        largest = max(cast("dict[str, int]", vocab).values(), default=-1)
    for token in spec.get("added_tokens") or []:
        largest = max(largest, token["id"])
    return largest


def _require_model_shape(name: str, model: Any) -> None:
    if not isinstance(model, dict):
        raise _wrong(name, TOKENIZER_JSON, "model", shown(model), "an object")
    vocab: Any = cast("dict[str, Any]", model).get("vocab")
    if isinstance(vocab, dict):
        ids = cast("dict[str, Any]", vocab).values()
        # One pass in C for each question: a vocabulary has up to a million entries.
        if set(map(type, ids)) - {int}:
            token = next(token for token, i in vocab.items() if type(i) is not int)
            raise _wrong_id(name, f"model.vocab[{_cut(token)!r}]", vocab[token])
        if ids and (min(ids) < 0 or max(ids) > MAX_ID):
            token = next(token for token, i in vocab.items() if not 0 <= i <= MAX_ID)
            raise _wrong_id(name, f"model.vocab[{_cut(token)!r}]", vocab[token])
    elif isinstance(vocab, list):
        for place, entry in enumerate(cast("list[Any]", vocab)):
            if not (
                isinstance(entry, list)
                and len(cast("list[Any]", entry)) == 2
                and type(entry[0]) is str
            ):
                raise _wrong(
                    name,
                    TOKENIZER_JSON,
                    f"model.vocab[{place}]",
                    shown(entry),
                    "a text and its score",
                )
    elif vocab is not None:
        raise _wrong(
            name, TOKENIZER_JSON, "model.vocab", shown(vocab), "an object or an array"
        )


def _require_added_tokens_shape(name: str, added: Any) -> None:
    if added is None:
        return
    if not isinstance(added, list):
        raise _wrong(name, TOKENIZER_JSON, "added_tokens", shown(added), "an array")
    characters = 0
    for place, token in enumerate(cast("list[Any]", added)):
        where = f"added_tokens[{place}]"
        if not isinstance(token, dict):
            raise _wrong(
                name,
                TOKENIZER_JSON,
                where,
                shown(token),
                "an object with id and content",
            )
        fields = cast("dict[str, Any]", token)
        content = fields.get("content")
        if type(content) is not str:
            raise _wrong(
                name, TOKENIZER_JSON, f"{where}.content", shown(content), "a text"
            )
        if type(fields.get("id")) is not int or not 0 <= fields["id"] <= MAX_ID:
            raise _wrong_id(name, f"{where}.id", fields.get("id"))
        if len(content) > MAX_TOKEN_TEXT:
            raise _wrong(
                name,
                TOKENIZER_JSON,
                f"{where}.content",
                f"{len(content):,} characters",
                f"at most {MAX_TOKEN_TEXT:,} characters",
            )
        characters += len(content)
    if characters > MAX_ADDED_TEXT:
        raise _wrong(
            name,
            TOKENIZER_JSON,
            "added_tokens",
            f"{characters:,} characters",
            f"at most {MAX_ADDED_TEXT:,} characters",
        )


def _require_stage_shape(name: str, stage: str, value: Any) -> None:
    if value is not None and not isinstance(value, dict):
        raise _wrong(name, TOKENIZER_JSON, stage, shown(value), "an object or null")
    for values, (key, item, depth) in enumerate(walk(value)):
        if depth > MAX_DEPTH:
            raise _wrong(
                name,
                TOKENIZER_JSON,
                stage,
                "deeper nested parts",
                f"at most {MAX_DEPTH} levels of them",
            )
        if values > MAX_STAGE_VALUES:
            raise _wrong(
                name,
                TOKENIZER_JSON,
                stage,
                "more values",
                f"at most {MAX_STAGE_VALUES:,} values in all",
            )
        if key in _ID_KEYS and type(item) is int and not 0 <= item <= MAX_ID:
            raise _wrong_id(name, f"{stage}: {key}", item)


def walk(value: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield every value in plain data as (key of the object that holds it, value,
    depth), without recursion.

    A value in an array has the key of the array.
    """
    pending: list[tuple[str, Any, int]] = [("", value, 0)]
    while pending:
        key, item, depth = pending.pop()
        yield key, item, depth
        children: Iterable[tuple[str, Any]] = ()
        if isinstance(item, dict):
            children = cast("dict[str, Any]", item).items()
        elif isinstance(item, list):
            children = ((key, child) for child in cast("list[Any]", item))
        pending.extend((child_key, child, depth + 1) for child_key, child in children)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _wrong_id(name: str, where: str, got: Any) -> TokenizerError:
    return _wrong(
        name, TOKENIZER_JSON, where, shown(got), f"an id from 0 to {MAX_ID:,}"
    )


def _wrong(name: str, file: str, where: str, got: str, expected: str) -> TokenizerError:
    return TokenizerError(
        f"tokenizer {name!r}: {file}: {where}: got {got}, expected {expected}",
        tokenizer=name,
        file=file,
        key=where,
    )
