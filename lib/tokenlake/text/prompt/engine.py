"""The prompt engine of the second system: rows become ids, attention mask and labels, one by one or as a batch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, final

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.section import path_of
from tokenlake.config.suggestion import require_one_of
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.ragged import Bools, Int32, offsets_of
from tokenlake.result import Err, Ok, Result
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.lengths.manager import BudgetStrategy, LengthManager
from tokenlake.text.lengths.padding import IGNORED, pad
from tokenlake.text.lengths.truncation import SIDES, STRATEGIES, Side, Strategy, truncate
from tokenlake.text.prompt.renderer import check_end, open_prompt
from tokenlake.text.rendering import Rendered
from tokenlake.tokenizers.encoder import SPECIAL_TOKENS_IN_TEXT, Encoder
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer

Padding = Literal["max_length", "longest", "do_not_pad"] | bool
Example = dict[str, Int32]
CutTokens = Callable[[int], tuple[int, int]]
"""Most tokens to keep, to the tokens that are kept: (first, last)."""

_NAMES: Final = ("input_ids", "attention_mask", "labels")
_PADDING: Final[dict[object, Any]] = {True: "longest", False: "do_not_pad"}
_PADDINGS: Final = ("max_length", "longest", "do_not_pad", True, False)
_TRIES: Final = 8  # tokens merge differently in a shorter text, so that the first try may miss by a few
_NAMED: Final = re.compile(r"column '([^']*)'")  # as the faults of values begin
_EXPECTED: Final = {
    "null_column": "a value in every column of the template",
    "not_a_string": "text, a number or a boolean",
    "empty_label": "an answer that is not empty",
    "special_token_in_text": "text without special tokens",
    "invalid_utf8": "whole characters",
}


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one prompt, int32[k], and which of them bear loss, bool[k]."""

    ids: Int32
    loss: Bools

    def __len__(self) -> int:
        return len(self.ids)

    def example(self) -> Example:
        """Return input_ids, attention_mask and labels, int32[k] each."""
        labels = np.where(self.loss, self.ids, np.int32(IGNORED))
        return dict(zip(_NAMES, (self.ids, np.ones_like(self.ids), labels), strict=True))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is put around a prompt's ids, and how long the whole may be.

    Attributes:
        prefix, suffix: what a prompt begins and ends with (BOS, EOS); what it spells itself is not put there again.
        max_length: most tokens, all special ones included.
        truncation_side: where what is too long is cut.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_length: int
    truncation_side: Side

    def length(self, tokens: Tokens) -> int:
        """Return how many tokens a prompt has with what is put around it."""
        before, after = self._lacking(tokens.ids)
        return len(before) + len(tokens) + len(after)

    def fitted(self, tokens: Tokens, cut: CutTokens) -> Tokens:
        """Return a whole prompt of at most `max_length` tokens.

        On the side where it is cut, what it spelled itself is gone, and is put there; an EOS after half an answer
        bears no loss: nobody is to learn to stop there.
        """
        before, after = self._lacking(tokens.ids)
        whole = True
        if len(before) + len(tokens) + len(after) > self.max_length:
            if self.truncation_side == "right":
                whole, after = False, self.suffix
            else:
                before = self.prefix
            first, last = cut(max(0, self.max_length - len(before) - len(after)))
            tokens = Tokens(tokens.ids[first:last], tokens.loss[first:last])
        ids = [np.array(before, np.int32), tokens.ids, np.array(after, np.int32)]
        ends = np.full(len(after), whole and bool(tokens.loss.any()))
        loss = np.concatenate([np.zeros(len(before), np.bool_), tokens.loss, ends])
        return Tokens(np.concatenate(ids)[: self.max_length], loss[: self.max_length])

    def _lacking(self, ids: Int32) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, after = self.prefix, self.suffix
        begins = tuple(ids[: len(before)].tolist()) == before
        ends = bool(after) and tuple(ids[-len(after) :].tolist()) == after
        return () if begins else before, () if ends else after


@final
class PromptEngine:
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` of a row; labels are -100 on prompt and padding.

    The prompt is rendered as a whole, tokenized as a whole, and a token bears loss if it holds a byte of the answer,
    or is the EOS after it. ::

        engine = PromptEngine({"template": "Q: {q}\\nA: {a}", "label_column": "a"}, "meta-llama/Llama-2-7b-hf")
        example = engine.process({"q": "2 + 2?", "a": "4"}).unwrap()

    Args:
        config: the section `prompt` (``prompt_template`` in the second system's files).
        tokenizer: Hub id, directory, tokenizer.json file, or its files.
        max_length: most tokens of a row, special ones included.
        truncation: cut what is longer, by one of the strategies of :mod:`tokenlake.text.lengths.truncation`; True is
            ``simple``; False and ``none`` make it an error.
        truncation_side: ``right``: the end goes, and the EOS that is put there bears no loss; ``left``: the beginning.
        padding: ``max_length``, ``longest`` of a batch (True), ``do_not_pad`` (False).
        padding_side: where padding goes.
        special_tokens_in_text: ``literal``, ``encode`` or ``fail``, as in a build.
        budget, ratios, priority: where a row is too long, its input columns are shortened first, by these shares (see
            :func:`tokenlake.text.lengths.manager.allocate`), so that the answer is not what is cut; None: the end is.

    Raises:
        ConfigError: the configuration is wrong, or does not fit the tokenizer.
    """

    def __init__(
        self,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles,
        *,
        max_length: int = 2048,
        truncation: Strategy | bool = True,
        truncation_side: Side = "right",
        padding: Padding = "max_length",
        padding_side: Side = "right",
        special_tokens_in_text: Literal["literal", "encode", "fail"] = "literal",
        budget: BudgetStrategy | None = None,
        ratios: Mapping[str, float] | None = None,
        priority: Sequence[str] | None = None,
    ) -> None:
        require_one_of("padding", padding, _PADDINGS)
        require_one_of("padding_side", padding_side, SIDES)
        require_one_of("truncation", truncation, (True, False, *STRATEGIES))
        require_one_of("truncation_side", truncation_side, SIDES)
        require_one_of("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT)
        if max_length < 1:
            expected = "a positive number"
            raise ConfigError(
                f"max_length is {max_length}, expected {expected}",
                field_path="max_length",
                expected=expected,
                got=repr(max_length),
            )
        files = tokenizer if isinstance(tokenizer, TokenizerFiles) else load_tokenizer(tokenizer)
        self._prompt = prompt = resolved_prompt(config)
        check_end(prompt, files, files.eos_id)
        self._renderer = open_prompt(prompt, files, special_tokens_in_text)
        control = self._renderer.control_tokens
        mode = "encode" if control or special_tokens_in_text == "encode" else "literal"
        self._encoder = Encoder(files, engine="tokenizers", special_tokens_in_text=mode, sample_rate=0.0)
        self._truncation: Strategy = _strategy(truncation)
        self._padding: Any = _PADDING.get(padding, padding)
        self._padding_side: Side = padding_side
        self._pad_id = _pad_id(files)
        self._frame = Frame(
            prefix=self._encoder.prefix if prompt.add_bos else (),
            suffix=_suffix(prompt, self._encoder.suffix, files.eos_id),
            max_length=max_length,
            truncation_side=truncation_side,
        )
        used = self._renderer.columns or prompt.input_columns
        self._shortened_columns = tuple(name for name in used if name != prompt.label_column)
        self._lengths: LengthManager | None = None
        if budget is not None:
            self._lengths = LengthManager(
                files,
                max_length=1 << 30,
                truncation="simple" if self._truncation == "none" else self._truncation,
                truncation_side=truncation_side,
                budget=budget,
                ratios=ratios,
                priority=priority,
                add_special_tokens=False,
            )
            self._lengths.fit(dict.fromkeys(self._shortened_columns, ""), 0)  # are shares and columns right?

    @classmethod
    def from_config(
        cls,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles,
        **options: Any,
    ) -> Result[Self, TokenlakeError]:
        """Return the engine, or what is wrong with its configuration."""
        try:
            return Ok(cls(config, tokenizer, **options))
        except TokenlakeError as error:
            return Err(error)

    def process(self, row: Mapping[str, Any]) -> Result[Example, TokenlakeError]:
        """Return ``{input_ids, attention_mask, labels}`` of a row, int32[L] each.

        The error says ``field_path`` (the column), ``expected`` and ``got``.
        """
        return self.process_batch([row]).map(
            lambda batch: {name: values[0] for name, values in batch.items()}
        )

    def process_batch(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> Result[Example | dict[str, list[Any]], TokenlakeError]:
        """Return the rows as one batch: int32[n, L] each; unpadded, lists of n arrays.

        The first row that cannot be used makes the whole an error, whose ``row`` is its index.
        """
        try:
            checked = [self._checked(index, row) for index, row in enumerate(rows)]
            if self._lengths is not None:
                checked = [self._shortened(self._lengths, row) for row in checked]
            return Ok(self._batch(checked))
        except TokenlakeError as error:
            return Err(error)

    def _checked(self, index: int, row: object) -> Row:
        if isinstance(row, Mapping):
            return dict(row)  # pyright: ignore[reportUnknownArgumentType]
        kind = type(row).__name__
        raise _bad(index, "", f"the row is a {kind}", "a mapping of columns", kind)

    def _shortened(self, lengths: LengthManager, row: Row) -> Row:
        """Shorten the input columns of a row that is too long; as it is where that is not enough."""
        over = self._over([row])
        # A column without text keeps its place in ratios and priorities.
        found = {name: row.get(name) for name in self._shortened_columns}
        texts = {name: value if isinstance(value, str) else "" for name, value in found.items()}
        if over <= 0 or not any(texts.values()):
            return row
        total = int(lengths.count(list(texts.values())).sum())
        for _ in range(_TRIES):
            total -= over
            if total < 0:
                break
            cut = lengths.fit(texts, total)
            short = {**row, **{name: each.text for name, each in cut.items() if texts[name]}}
            over = self._over([short])
            if over <= 0:
                return short
        return row

    def _over(self, rows: list[Row]) -> int:
        """Return how many tokens a row has too many."""
        return self._frame.length(self._encoded(self._rendered(rows))[0]) - self._frame.max_length

    def _batch(self, rows: list[Row]) -> Example | dict[str, list[Any]]:
        made = self._rendered(rows)
        documents = [self._fit(index, tokens, made.text) for index, tokens in enumerate(self._encoded(made))]
        if self._padding == "do_not_pad" or not documents:
            examples = [tokens.example() for tokens in documents]
            return {name: [example[name] for example in examples] for name in _NAMES}
        (padded,) = pad(
            np.concatenate([tokens.ids for tokens in documents]),
            offsets_of([len(tokens) for tokens in documents]),
            pad_id=self._pad_id,
            strategy=self._padding,
            side=self._padding_side,
            max_length=self._frame.max_length,
            loss=np.concatenate([tokens.loss for tokens in documents]),
        )
        return {name: getattr(padded, name) for name in _NAMES}

    def _rendered(self, rows: list[Row]) -> Rendered:
        made = self._renderer.render(Rows(objects=rows))
        if made.bad:
            index, fault = made.bad[0]
            raise _unusable(index, rows[index], fault)
        return made

    def _encoded(self, made: Rendered) -> list[Tokens]:
        if not len(made.text):
            return []
        assert made.spans is not None
        encoded, loss = self._encoder.encode_spans(made.text, made.spans)
        edges = encoded.offsets[1:-1]
        pairs = zip(np.split(encoded.ids, edges), np.split(loss, edges), strict=True)
        return [Tokens(*pair) for pair in pairs]

    def _fit(self, index: int, tokens: Tokens, text: pa.LargeStringArray) -> Tokens:
        limit, whole = self._frame.max_length, self._frame.length(tokens)
        if whole > limit and self._truncation == "none":
            raise _bad(
                index,
                "max_length",
                f"the prompt has {whole} tokens, max_length is {limit} and truncation is off",
                f"at most {limit} tokens",
                whole,
            )
        fitted = self._frame.fitted(tokens, lambda room: self._cut(text.slice(index, 1), room))
        if not fitted.loss.any():
            raise _bad(
                index,
                self._prompt.label_column or "",
                f"no token of the answer is left of {whole}, max_length is {limit}: the prompt alone fills it; raise "
                "max_length, or cut the prompt",
                "at least one token to learn",
                0,
                reason="nothing_to_learn",
            )
        return fitted

    def _cut(self, text: pa.LargeStringArray, room: int) -> tuple[int, int]:
        """Return which tokens of a text, large_string[1], are kept."""
        _, start, stop = self._encoder.encode_places(text)
        side = self._frame.truncation_side
        cut = truncate(str(text[0].as_py()), start, stop, room, self._truncation, side)
        return cut.first, cut.last


def _unusable(index: int, row: Row, fault: Fault) -> BadRecordError:
    found = _NAMED.search(fault.detail)
    column = found[1] if found else ""
    got = repr(row[column]) if column in row else f"columns {', '.join(map(repr, row)) or 'none'}"
    return _bad(index, column, fault.detail, _EXPECTED.get(fault.reason, ""), got, reason=fault.reason)


def resolved_prompt(config: PromptConfig | Mapping[str, Any]) -> ResolvedPrompt:
    """Return a section `prompt` worked out.

    Raises:
        ConfigError: it is wrong.
    """
    if not isinstance(config, PromptConfig):
        try:
            config = PromptConfig.model_validate(dict(config))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(("prompt", path_of(first["loc"]))).rstrip(".")
            raise ConfigError(
                f"{path}: {first['msg']}", field_path=path, expected=first["msg"], got=repr(first["input"])
            ) from None
    return ResolvedPrompt(**config.model_dump())


def _suffix(prompt: ResolvedPrompt, suffix: tuple[int, ...], eos_id: int | None) -> tuple[int, ...]:
    """Return what a prompt ends with: what the post-processor puts there, and EOS; a chat template ends the answer."""
    if not prompt.add_eos:
        return ()
    if prompt.format_type == "chat" or eos_id is None or suffix[-1:] == (eos_id,):
        return suffix
    return (*suffix, eos_id)


def _pad_id(files: TokenizerFiles) -> int:
    found = files.pad_id if files.pad_id is not None else files.eos_id
    # Padding is masked, so that any id will do where a tokenizer names none.
    return 0 if found is None else found


def _strategy(truncation: Strategy | bool) -> Strategy:
    return ("simple" if truncation else "none") if isinstance(truncation, bool) else truncation


def _bad(
    index: int, column: str, what: str, expected: str, got: object, *, reason: str = "prompt"
) -> BadRecordError:
    return BadRecordError(
        f"row {index}: {what}", row=index, field_path=column, expected=expected, got=got, reason=reason
    )
