"""Rows to tokens, some at a time: callback, renames, chat template, tokenizer, kept fields, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.ragged import Ragged, offsets_of
from tokenlake.rowwise.source import Row
from tokenlake.text.chat.renderer import ChatTemplateTransform
from tokenlake.text.fields import RenameFields
from tokenlake.text.lengths.token_cuts import continuing_tokens, cut_before
from tokenlake.tokenizers.manager import LoadedTokenizer, with_masks

Int64 = npt.NDArray[np.int64]
Numbered = Iterator[tuple[int, Row]]
Callback = Callable[[Row], Row | None]

_FIRST_ROWS: Final = 16  # of the first batch: the first row should come soon
_BATCH_BYTES: Final = 4 << 20  # of text
_RENDERED: Final = "__rendered__"


@final
@dataclass(frozen=True, slots=True)
class Wanted:
    """A row that is ready for the tokenizer.

    Attributes:
        number: its place in its shard.
        text: what is tokenized.
        whole: a chat template made the text, which spells its own special tokens.
        kept: fields that come out beside the tokens.
    """

    number: int
    text: str
    whole: bool
    kept: Row


@final
@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """How rows become tokens.

    Attributes:
        tokenizer, config: with which, and how.
        content_field: of the text, or of the messages of a chat.
        keep: fields that come out beside the tokens; None: all but those of `remove`.
        remove: fields that do not come out.
        callback: applied first; None as its result leaves the row out.
        rename: {old: new}, after it.
        batch_size: rows that are tokenized together, at most; with padding "longest" exactly those whose numbers,
            divided by it, are the same.
        arrays: int32 arrays instead of lists.
    """

    tokenizer: LoadedTokenizer
    config: TokenizerConfig
    content_field: str = "text"
    keep: tuple[str, ...] | None = ()
    remove: frozenset[str] = frozenset()
    callback: Callback | None = None
    rename: Mapping[str, str] | None = None
    batch_size: int = 1000
    arrays: bool = False

    @property
    def aligned(self) -> bool:
        """Whether a row's tokens depend on the rows beside it, so that batches must lie where they always do."""
        return self.config.padding == "longest"

    @property
    def every_row(self) -> bool:
        """Whether exactly one row comes out of each."""
        return self.callback is None

    def tokenized(self, rows: Numbered, shard: str) -> Numbered:
        """Yield every row that was not left out, with its number.

        Rows before one that cannot be used come out before the error does.

        Raises:
            BadRecordError: a row has no text; names shard and row.
        """
        prepare = self._preparing(shard)
        for batch, error in _batched(rows, prepare, self.batch_size, self.aligned):
            if batch:
                yield from self._encoded(batch)
            if error is not None:
                raise error

    def _preparing(self, shard: str) -> Callable[[int, Row], Wanted | None]:
        rename = RenameFields(self.rename) if self.rename else None

        def prepare(number: int, row: Row) -> Wanted | None:
            try:
                made = row if self.callback is None else self.callback(row)
                if made is None:
                    return None
                if not isinstance(made, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise ConfigError(
                        f"shard {shard!r}, row {number}: format_callback returned {type(made).__name__}, must be a "
                        "dict, or None, which leaves the row out"
                    )
                made = made if rename is None else rename(made)
                text, whole = self._text(made or {})
                return Wanted(number, text, whole, self._kept(made or {}))
            except BadRecordError as error:
                place = f"shard {shard!r}, row {number}"
                raise BadRecordError(f"{place}: {error}", **error.details, shard=shard, row=number) from error
            except Exception as error:
                error.add_note(
                    f"raised by what is done to shard {shard!r}, row {number}, before it is tokenized"
                )
                raise

        return prepare

    def _text(self, row: Row) -> tuple[str, bool]:
        """Return the text of a row, and whether a chat template made it."""
        value = row.get(self.content_field)
        if isinstance(value, list) or (value is None and any(row.get(name) for name in MESSAGES_FIELDS)):
            plain = {name: item for name, item in row.items() if name != _RENDERED}
            return self._chat(plain)[_RENDERED], True
        return _checked(value, self.content_field, list(row)), False

    def _kept(self, row: Row) -> Row:
        if self.keep is None:
            return {name: value for name, value in row.items() if name not in self.remove}
        missing = [name for name in self.keep if name not in row]
        if missing:
            raise BadRecordError(
                f"additional_fields: the row has no field {missing[0]!r}; it has {_listed(list(row))}",
                reason="missing_field",
                fields=missing,
            )
        return {name: row[name] for name in self.keep if name not in self.remove}

    def _encoded(self, batch: Sequence[Wanted]) -> Numbered:
        columns = with_masks(self._ids(batch), self.tokenizer, self.config)
        names = list(columns)
        for wanted, *values in zip(batch, *columns.values(), strict=True):
            tokens = values if self.arrays else [value.tolist() for value in values]
            yield wanted.number, {**wanted.kept, **dict(zip(names, tokens, strict=True))}

    def _ids(self, batch: Sequence[Wanted]) -> Ragged:
        """Encode plain texts and rendered ones apart: only the latter spell special tokens."""
        whole = [wanted.whole for wanted in batch]
        if not any(whole) or all(whole):
            return self._encode([wanted.text for wanted in batch], whole[0])
        rows: dict[int, Any] = {}
        for kind in (False, True):
            places = [place for place, is_whole in enumerate(whole) if is_whole is kind]
            ids = self._encode([batch[place].text for place in places], kind)
            rows.update(zip(places, ids.rows(), strict=True))
        ordered = [rows[place] for place in range(len(batch))]
        return Ragged(np.concatenate(ordered), offsets_of([len(row) for row in ordered]))

    def _encode(self, texts: list[str], whole: bool) -> Ragged:
        column: Any = pa.array(texts, pa.large_string())
        return self.tokenizer.encode(column, self.config, whole=whole, between=self._between_characters)

    def _between_characters(self, ids: Ragged, stops: Int64) -> Int64:
        """Move cuts before a character that they would halve, as a build does."""
        begin = ids.offsets[:-1]
        return cut_before(self._goes_on[ids.ids], begin, begin + stops) - begin

    @cached_property
    def _goes_on(self) -> npt.NDArray[np.bool_]:
        return continuing_tokens(self.tokenizer.files)

    @cached_property
    def _chat(self) -> ChatTemplateTransform:
        return ChatTemplateTransform(self.tokenizer.files, self.content_field, _RENDERED)


def _batched(
    rows: Numbered, prepare: Callable[[int, Row], Wanted | None], batch_size: int, aligned: bool
) -> Iterator[tuple[list[Wanted], Exception | None]]:
    """Yield rows in batches, and what stopped them, if anything did, with the rows before it."""
    batch: list[Wanted] = []
    size = 0
    most = batch_size if aligned else min(_FIRST_ROWS, batch_size)
    block: int | None = None
    try:
        for number, row in rows:
            full = number // batch_size != block if aligned else len(batch) >= most or size >= _BATCH_BYTES
            if batch and full:
                yield batch, None
                batch, size, most = [], 0, min(most * 4, batch_size)
            block = number // batch_size
            if (wanted := prepare(number, row)) is not None:
                batch.append(wanted)
                size += len(wanted.text)
    except Exception as error:
        yield batch, error
        return
    yield batch, None


def _checked(value: object, field: str, has: Sequence[str] = ()) -> str:
    if value is None:
        there = f"; it has {_listed(has)}" if has and field not in has else ""
        raise BadRecordError(f"the field {field!r} is missing or null{there}", reason="null_text")
    if not isinstance(value, str):
        raise BadRecordError(
            f"the field {field!r} holds {type(value).__name__}, expected text", reason="not_a_string"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRecordError(
            f"the field {field!r} holds half of a surrogate pair", reason="invalid_utf8"
        ) from None
    return value


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) or "no fields"
