"""Ids and labels of one prompt and its answer.

They are rendered, tokenized whole, framed by BOS and EOS, and cut.

Example: BOS is 1, EOS is 2, and `max_length` is 6. The prompt 5 6 7 with the answer 8 9
would have 7 ids in its frame. It becomes ``1 5 6 7 8 2``, of which only 8 counts toward
the loss: 2 stands behind half an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from tokenlake.base.arrays import Bools, Int32
from tokenlake.base.columns import IGNORED
from tokenlake.base.section import path_of
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Row, Rows
from tokenlake.etl.text.cut import CutCount, CutCounter
from tokenlake.etl.text.prompt_renderer import check_end, open_prompt
from tokenlake.etl.text.renderer import Renderer
from tokenlake.etl.text.truncation import Side, Strategy, truncate
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles

EXAMPLE_COLUMNS: Final = ("input_ids", "attention_mask", "labels")

# It is far above the length of any text, and fits int32.
ANY_LENGTH: Final = 1 << 30
"""A maximum length that no row has."""

_EXPECTED: Final = {
    "null_column": "a value in every column of the template",
    "not_a_string": "text, a number or a boolean",
    "empty_label": "an answer that is not empty",
    "special_token_in_text": "text without special tokens",
    "invalid_utf8": "whole characters",
}
"""Expected values by the reason of a fault."""


@final
class ProcessedExample(dict[str, Int32]):
    """Row for a trainer, read by key or attribute.

    Args:
        input_ids: Ids, int32[L].
        attention_mask: 1 for ids of the row, 0 for padding, int32[L].
        labels: Ids that count toward the loss, -100 elsewhere, int32[L].

    Example:
        >>> import numpy as np
        >>> from tokenlake.data_pipeline import ProcessedExample
        >>> example = ProcessedExample(
        ...     input_ids=np.array([1, 5, 6]),
        ...     attention_mask=np.array([1, 1, 1]),
        ...     labels=np.array([-100, -100, 6]),
        ... )
        >>> example.input_length
        2
    """

    @property
    def input_ids(self) -> Int32:
        """int32[L]: ids."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Int32:
        """int32[L]: 1 for the row's own ids, 0 for padding."""
        return self["attention_mask"]

    @property
    def labels(self) -> Int32:
        """int32[L]: ids where they count toward the loss, -100 elsewhere."""
        return self["labels"]

    @property
    def input_length(self) -> int:
        """Number of ids before the first that counts toward the loss, without padding."""
        row_labels = self["labels"][self["attention_mask"] == 1]
        learned_ids = np.flatnonzero(row_labels != IGNORED)
        if not len(learned_ids):
            return len(row_labels)
        return int(learned_ids[0])


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The k ids of a text.

    Attributes:
        ids: int32[k]: ids.
        loss: bool[k]: ids that count toward the loss.
        text: large_string[1]: text.
    """

    ids: Int32
    loss: Bools
    text: pa.LargeStringArray

    def example(self) -> ProcessedExample:
        """Return input_ids, attention_mask and labels, int32[k] each."""
        return ProcessedExample(
            input_ids=self.ids,
            attention_mask=np.ones_like(self.ids),
            labels=np.where(self.loss, self.ids, np.int32(IGNORED)),
        )


@final
class Labeller:
    """Makes ids and labels of rows.

    Rows are rendered, tokenized whole, framed by BOS and EOS, and cut.

    Args:
        files: Files of the tokenizer.
        renderer: Renderer of the rows.
        special_tokens_in_text: ``encode`` makes control tokens of special tokens that a
            text spells; it acts in any case where the renderer's own special tokens
            become control tokens.
        max_length: Maximum number of tokens, special tokens included.
        truncation: Strategy of cuts; ``none`` makes a row that is too long an error.
        truncation_side: Side from which tokens are cut away.
        bos: True to begin a text with the tokenizer's prefix, unless the text spells it
            itself.
        suffix: Ids that end a text; None: the tokenizer's suffix.
        eos_id: Id that the suffix ends with in any case; None: none.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        renderer: Renderer,
        special_tokens_in_text: str,
        *,
        max_length: int,
        truncation: Strategy = "simple",
        truncation_side: Side = "right",
        bos: bool = True,
        suffix: tuple[int, ...] | None = None,
        eos_id: int | None = None,
    ) -> None:
        # 1. The encoder. It is the reference, without samples: prompts are few and
        #    short.
        encodes_specials = renderer.control_tokens or special_tokens_in_text == "encode"
        self.encoder: Final = Encoder(
            files,
            engine="tokenizers",
            special_tokens_in_text="encode" if encodes_specials else "literal",
            sample_rate=0.0,
        )
        self.renderer: Final = renderer
        # 2. The limit, and the rule of cuts.
        self.max_length: Final = max_length
        self.cut: Final = CutCounter("prompts", max_length)
        self._truncation: Strategy = truncation
        self._truncation_side: Side = truncation_side
        # 3. The ids around a text.
        self._prefix = self.encoder.prefix if bos else ()
        self._suffix = self.encoder.suffix if suffix is None else suffix
        if eos_id is not None and self._suffix[-1:] != (eos_id,):
            self._suffix = (*self._suffix, eos_id)

    def tokens(self, rows: list[Row]) -> list[Tokens]:
        """Return the ids of n rows.

        Raises:
            BadRecordError: A row cannot be used; the error names the first.
        """
        rendered = self.renderer.render(Rows(objects=rows))
        for index, fault in rendered.bad:
            raise _unusable_row(index, rows[index], fault)
        if not rows:
            return []
        assert rendered.spans is not None
        encoded, loss = self.encoder.encode_spans(rendered.text, rendered.spans)
        # The ids of all rows, cut into those of each.
        edges = encoded.offsets[1:-1]
        ids_of_rows = np.split(encoded.ids, edges)
        loss_of_rows = np.split(loss, edges)
        all_tokens: list[Tokens] = []
        for index in range(len(rows)):
            text = rendered.text.slice(index, 1)
            all_tokens.append(Tokens(ids_of_rows[index], loss_of_rows[index], text))
        return all_tokens

    def length(self, tokens: Tokens) -> int:
        """Return the number of tokens of a text with its prefix and suffix."""
        prefix = self._missing_prefix(tokens.ids)
        suffix = self._missing_suffix(tokens.ids)
        return len(prefix) + len(tokens.ids) + len(suffix)

    def fitted(self, index: int, tokens: Tokens, column: str = "") -> Tokens:
        """Return a framed text of at most `max_length` tokens.

        A prefix or suffix that the text itself spelled is put back on the side where
        the text was cut. An EOS after half an answer does not count toward the loss: no
        model is to learn to stop there.

        Args:
            index: Index of the row, for errors.
            tokens: Ids of the text.
            column: Column of the answer, for errors.

        Raises:
            BadRecordError: The text is too long and may not be cut, or none of its
                tokens counts toward the loss.
        """
        prefix = self._missing_prefix(tokens.ids)
        suffix = self._missing_suffix(tokens.ids)
        token_ids = tokens.ids
        loss = tokens.loss
        whole_length = self.length(tokens)
        learns_suffix = bool(loss.any())
        # 1. Cut a text that is too long. The side of the cut gets its frame back.
        if whole_length > self.max_length:
            self._require_truncation(index, whole_length)
            if self._truncation_side == "right":
                suffix = self._suffix
                learns_suffix = False
            else:
                prefix = self._prefix
            room = max(0, self.max_length - len(prefix) - len(suffix))
            remaining_tokens = self._remaining_tokens(tokens, room)
            token_ids = token_ids[remaining_tokens]
            loss = loss[remaining_tokens]
            learns_suffix = learns_suffix and bool(loss.any())
        # 2. Prefix, text, suffix; where these alone are too long, the end is cut.
        prefix_ids = np.array(prefix, np.int32)
        suffix_ids = np.array(suffix, np.int32)
        framed_ids = np.concatenate([prefix_ids, token_ids, suffix_ids])
        prefix_loss = np.zeros(len(prefix), np.bool_)
        suffix_loss = np.full(len(suffix), learns_suffix)
        framed_loss = np.concatenate([prefix_loss, loss, suffix_loss])
        framed = Tokens(
            framed_ids[: self.max_length], framed_loss[: self.max_length], tokens.text
        )
        # 3. A row of which nothing is learned is useless.
        if not framed.loss.any():
            is_too_long = whole_length > self.max_length
            raise bad_row(
                index,
                column,
                f"no token that counts toward the loss is left of {whole_length}, max_length is {self.max_length}: "
                "raise it, shorten the prompt, or leave these rows out",
                "at least one token to learn",
                0,
                reason="too_long" if is_too_long else "nothing_to_learn",
            )
        self._count_cut(whole_length, whole_length - len(framed.ids))
        return framed

    def _count_cut(self, whole_length: int, dropped_tokens: int) -> None:
        """Count the tokens of one text, and warn if most are left out."""
        self.cut.add(
            CutCount(
                documents=1,
                cut=int(dropped_tokens > 0),
                tokens=whole_length,
                dropped=dropped_tokens,
            )
        )
        self.cut.judge(is_end=False)

    def _require_truncation(self, index: int, length: int) -> None:
        """Require that a text that is too long may be cut."""
        if self._truncation == "none":
            raise bad_row(
                index,
                "max_length",
                f"the prompt has {length} tokens, max_length is {self.max_length} and truncation is off",
                f"at most {self.max_length} tokens",
                length,
                reason="too_long",
            )

    def _remaining_tokens(self, tokens: Tokens, room: int) -> slice:
        """Return the tokens of a text that a cut leaves, at most `room` of them."""
        # Places of tokens need an encoding of their own: the ids alone do not hold them.
        _, start, stop = self.encoder.encode_places(tokens.text)
        text = str(tokens.text[0].as_py())
        cut = truncate(text, start, stop, room, self._truncation, self._truncation_side)
        return slice(cut.first, cut.last)

    def _missing_prefix(self, token_ids: Int32) -> tuple[int, ...]:
        """Return the prefix, or () where the ids begin with it."""
        first_ids = tuple(token_ids[: len(self._prefix)].tolist())
        if first_ids == self._prefix:
            return ()
        return self._prefix

    def _missing_suffix(self, token_ids: Int32) -> tuple[int, ...]:
        """Return the suffix, or () where the ids end with it."""
        suffix_size = len(self._suffix)
        # A slice from -0 would be all ids.
        if suffix_size and tuple(token_ids[-suffix_size:].tolist()) == self._suffix:
            return ()
        return self._suffix


def _unusable_row(index: int, row: Row, fault: Fault) -> BadRecordError:
    """Return the error of a row that cannot be rendered."""
    # A column that the row lacks has no value: the error lists the others.
    actual = f"columns {', '.join(map(repr, row)) or 'none'}"
    if fault.column in row:
        actual = repr(row[fault.column])
    expected = _EXPECTED.get(fault.reason, "")
    return bad_row(
        index, fault.column, fault.detail, expected, actual, reason=fault.reason
    )


def resolved_prompt(config: PromptConfig | Mapping[str, Any]) -> ResolvedPrompt:
    """Return the settings of a section ``prompt``.

    Raises:
        ConfigError: The section is wrong.
    """
    if not isinstance(config, PromptConfig):
        try:
            config = PromptConfig.model_validate(dict(config))
        except ValidationError as error:
            # The first problem is enough: a later one may follow from it.
            first_problem = error.errors(include_url=False)[0]
            message = first_problem["msg"]
            path = ".".join(("prompt", path_of(first_problem["loc"]))).rstrip(".")
            raise ConfigError(
                f"{path}: {message}",
                field_path=path,
                expected=message,
                got=repr(first_problem["input"]),
            ) from None
    return ResolvedPrompt(**config.model_dump())


def prompt_labeller(
    prompt: ResolvedPrompt,
    files: TokenizerFiles,
    special_tokens_in_text: str,
    **options: Any,
) -> Labeller:
    """Return the labeller of prompts.

    Args:
        prompt: Section ``prompt``.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token.
        options: Further arguments of :class:`Labeller`.

    Raises:
        ConfigError: The template is wrong, does not fit its columns, or an answer would
            have no end.
    """
    check_end(prompt, files, files.eos_id)
    renderer = open_prompt(prompt, files, special_tokens_in_text)
    # None is the tokenizer's own suffix.
    suffix: tuple[int, ...] | None = None
    if not prompt.add_eos:
        suffix = ()
    elif prompt.format_type != "chat":  # a chat template ends the answer itself
        options["eos_id"] = files.eos_id
    return Labeller(
        files,
        renderer,
        special_tokens_in_text,
        bos=prompt.add_bos,
        suffix=suffix,
        **options,
    )


def bad_row(
    index: int,
    column: str,
    problem: str,
    expected: str,
    got: object,
    *,
    reason: str = "prompt",
) -> BadRecordError:
    """Return the error of a row that cannot be used.

    Args:
        index: Index of the row.
        column: Column with the problem.
        problem: Message.
        expected: Expected value.
        got: Value of the row.
        reason: Reason under which the row is counted.
    """
    return BadRecordError(
        problem, row=index, field_path=column, expected=expected, got=got, reason=reason
    )
