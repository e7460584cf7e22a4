"""Shape of a tokenizer's files, checked before anything else reads them.

The checks are about types and sizes alone: every later reader may then rely on them.
Whether the parts of a tokenizer.json fit each other is for `tokenizers` to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final, cast

import msgspec

from tokenlake.errors import TokenizerError

TOKENIZER_JSON: Final = "tokenizer.json"
MAX_FILE_BYTES: Final = 128 << 20
"""Most bytes of a tokenizer.json or of a file beside it.

The largest vocabularies (a million pieces) take half.
"""
MAX_CONTAINERS: Final = 8 << 20
"""Most arrays and objects of a tokenizer.json.

Each takes at least 56 bytes when it is parsed.
"""
MAX_ID: Final = (1 << 31) - 1
"""Largest id that int32 holds, the type of ids in a dataset."""
MAX_DEPTH: Final = 32
"""Most levels of nested stages, such as Sequence in Sequence."""
MAX_STAGE_VALUES: Final = 100_000
"""Most values in one of the four stages.

A post-processor may list some hundred tokens.
"""
MAX_TOKEN_TEXT: Final = 8192
"""Most characters of an added token, and of a token in tokenizer_config.json."""
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
# Keys of the stages whose integers are ids.
_ID_KEYS: Final = frozenset(("id", "ids", "sep", "cls"))
_SHOWN: Final = 60  # characters of a value in a message


def parse_json_object(name: str, file: str, data: bytes) -> dict[str, Any]:
    """Return the object that a JSON file of a tokenizer holds.

    Args:
        name: Name of the tokenizer, for messages.
        file: Name of the file, for messages.
        data: Content of the file.

    Raises:
        TokenizerError: The file is too large, is not JSON, is nested too deep, or does
            not hold an object.
    """
    require_size(name, file, len(data))
    # Brackets inside of texts count, too: the number is a bound, and costs one pass.
    container_count = data.count(b"[") + data.count(b"{")
    if container_count > MAX_CONTAINERS:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} has {container_count:,} arrays and objects, "
            f"expected at most {MAX_CONTAINERS:,}",
            tokenizer=name,
            file=file,
        )
    try:
        parsed: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Other encodings, half of a surrogate pair, NaN: Python's own parser knows
        # more.
        parsed = _parsed_by_python(name, file, data)
    if not isinstance(parsed, dict):
        raise TokenizerError(
            f"tokenizer {name!r}: {file} holds a {type(parsed).__name__}, expected an object",
            tokenizer=name,
            file=file,
        )
    return cast("dict[str, Any]", parsed)


def require_size(name: str, file: str, size: int) -> None:
    """Raise TokenizerError if a file of a tokenizer is too large.

    The limit is :data:`MAX_FILE_BYTES`. The size is known before the file is read.
    """
    if size > MAX_FILE_BYTES:
        raise TokenizerError(
            f"tokenizer {name!r}: {file} has {size:,} bytes, expected at most {MAX_FILE_BYTES:,}",
            tokenizer=name,
            file=file,
        )


def _parsed_by_python(name: str, file: str, data: bytes) -> Any:
    """Return the value of a JSON file, by Python's own parser."""
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
        TokenizerError: A part has another type than it must have, an id does not fit
            into int32, or an added token is too long. The message names the part.
    """
    _require_model_shape(name, spec.get("model", {}))
    _require_added_tokens_shape(name, spec.get("added_tokens"))
    for stage in STAGES:
        _require_stage_shape(name, stage, spec.get(stage))


def require_config_shape(name: str, file: str, config: Mapping[str, Any]) -> None:
    """Check the tokens that tokenizer_config.json or special_tokens_map.json names.

    Raises:
        TokenizerError: A token is neither a text nor an object with a text as its
            content, or it is too long.
    """
    # A token is a text, or an object that holds it.
    for token_name in NAMED_TOKENS:
        token_value = config.get(token_name)
        if isinstance(token_value, dict):
            token_value = cast("dict[str, Any]", token_value).get("content")
            if token_value is None:
                raise _wrong(
                    name,
                    file,
                    token_name,
                    "an object without a content",
                    "a text, or {content: text}",
                )
        if token_value is None:
            continue
        if not isinstance(token_value, str):
            raise _wrong(
                name,
                file,
                token_name,
                shown(token_value),
                "a text, {content: text} or null",
            )
        if len(token_value) > MAX_TOKEN_TEXT:
            raise _wrong(
                name,
                file,
                token_name,
                f"{len(token_value):,} characters",
                f"at most {MAX_TOKEN_TEXT:,} characters",
            )


def shown(value: object) -> str:
    """Return the type of a JSON value and the beginning of its text, for messages."""
    # Arrays and objects are named by their type only.
    value_text = ""
    if isinstance(value, str | int | float | bool | None):
        value_text = _cut(repr(value))
    return f"{type(value).__name__} {value_text}".strip()


def largest_id(spec: Mapping[str, Any]) -> int:
    """Return the largest id of the vocabulary and the added tokens, -1 without any."""
    # A Unigram vocabulary is a list, whose ids are the places in it.
    vocab: Any = spec.get("model", {}).get("vocab") or {}
    highest_id = len(vocab) - 1
    if isinstance(vocab, dict):
        highest_id = max(cast("dict[str, int]", vocab).values(), default=-1)
    for token in spec.get("added_tokens") or []:
        highest_id = max(highest_id, token["id"])
    return highest_id


def _require_model_shape(name: str, model: Any) -> None:
    """Check the model: an object, with a vocabulary of ids or of scores."""
    if not isinstance(model, dict):
        raise _wrong(name, TOKENIZER_JSON, "model", shown(model), "an object")
    vocab: Any = cast("dict[str, Any]", model).get("vocab")
    if isinstance(vocab, dict):
        _require_ids(name, cast("dict[str, Any]", vocab))
    elif isinstance(vocab, list):
        # Unigram: a list of [piece, score].
        for entry_index, entry in enumerate(cast("list[Any]", vocab)):
            is_pair = isinstance(entry, list) and len(cast("list[Any]", entry)) == 2
            if not is_pair or type(entry[0]) is not str:
                raise _wrong(
                    name,
                    TOKENIZER_JSON,
                    f"model.vocab[{entry_index}]",
                    shown(entry),
                    "a text and its score",
                )
    elif vocab is not None:
        raise _wrong(
            name, TOKENIZER_JSON, "model.vocab", shown(vocab), "an object or an array"
        )


def _require_ids(name: str, vocab: dict[str, Any]) -> None:
    """Check that the values of a vocabulary are ids."""
    # One pass in C for each question: a vocabulary has up to a million entries. Only
    # if something is wrong, a second pass finds the token for the message.
    ids = vocab.values()
    if set(map(type, ids)) - {int}:
        for token, token_id in vocab.items():
            if type(token_id) is not int:
                raise _wrong_id(name, f"model.vocab[{_cut(token)!r}]", token_id)
    if ids and (min(ids) < 0 or max(ids) > MAX_ID):
        for token, token_id in vocab.items():
            if not 0 <= token_id <= MAX_ID:
                raise _wrong_id(name, f"model.vocab[{_cut(token)!r}]", token_id)


def _require_added_tokens_shape(name: str, added: Any) -> None:
    """Check the added tokens: each has an id and a text that is not too long."""
    if added is None:
        return
    if not isinstance(added, list):
        raise _wrong(name, TOKENIZER_JSON, "added_tokens", shown(added), "an array")
    characters = 0
    for token_index, token in enumerate(cast("list[Any]", added)):
        token_key = f"added_tokens[{token_index}]"
        if not isinstance(token, dict):
            raise _wrong(
                name,
                TOKENIZER_JSON,
                token_key,
                shown(token),
                "an object with id and content",
            )
        # Its text, its id, and the length of the text.
        token_fields = cast("dict[str, Any]", token)
        content = token_fields.get("content")
        if type(content) is not str:
            raise _wrong(
                name, TOKENIZER_JSON, f"{token_key}.content", shown(content), "a text"
            )
        if (
            type(token_fields.get("id")) is not int
            or not 0 <= token_fields["id"] <= MAX_ID
        ):
            raise _wrong_id(name, f"{token_key}.id", token_fields.get("id"))
        if len(content) > MAX_TOKEN_TEXT:
            raise _wrong(
                name,
                TOKENIZER_JSON,
                f"{token_key}.content",
                f"{len(content):,} characters",
                f"at most {MAX_TOKEN_TEXT:,} characters",
            )
        characters += len(content)
    # Many tokens of allowed length could be too much together.
    if characters > MAX_ADDED_TEXT:
        raise _wrong(
            name,
            TOKENIZER_JSON,
            "added_tokens",
            f"{characters:,} characters",
            f"at most {MAX_ADDED_TEXT:,} characters",
        )


def _require_stage_shape(name: str, stage: str, value: Any) -> None:
    """Check a stage: an object of few and not too deep values, and its ids."""
    if value is not None and not isinstance(value, dict):
        raise _wrong(name, TOKENIZER_JSON, stage, shown(value), "an object or null")
    # Depth and number are checked while the values are walked, so that the walk ends.
    for value_count, (key, item, depth) in enumerate(walk(value)):
        if depth > MAX_DEPTH:
            raise _wrong(
                name,
                TOKENIZER_JSON,
                stage,
                "deeper nested parts",
                f"at most {MAX_DEPTH} levels of them",
            )
        if value_count > MAX_STAGE_VALUES:
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
    """Yield every value in plain data as (key, value, depth), without recursion.

    The key is that of the object that holds the value.

    A value in an array has the key of the array.
    """
    # A stack instead of recursion: the depth of a hostile file is not bounded yet.
    pending_values: list[tuple[str, Any, int]] = [("", value, 0)]
    while pending_values:
        key, item, depth = pending_values.pop()
        yield key, item, depth
        children: Iterable[tuple[str, Any]] = ()
        if isinstance(item, dict):
            children = cast("dict[str, Any]", item).items()
        elif isinstance(item, list):
            children = zip(repeat(key), cast("list[Any]", item), strict=False)
        for child_key, child in children:
            pending_values.append((child_key, child, depth + 1))


def _cut(text: str) -> str:
    """Return a text for a message, cut to a few characters."""
    if len(text) <= _SHOWN:
        return text
    return text[:_SHOWN] + "..."


def _wrong_id(name: str, key: str, got: Any) -> TokenizerError:
    """Return the error for a value in the place of an id."""
    return _wrong(name, TOKENIZER_JSON, key, shown(got), f"an id from 0 to {MAX_ID:,}")


def _wrong(name: str, file: str, key: str, got: str, expected: str) -> TokenizerError:
    """Return the error for a wrong value in a file of a tokenizer."""
    return TokenizerError(
        f"tokenizer {name!r}: {file}: {key}: got {got}, expected {expected}",
        tokenizer=name,
        file=file,
        key=key,
    )
