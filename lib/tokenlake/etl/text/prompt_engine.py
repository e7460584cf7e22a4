""":class:`PromptEngine`: rows become ids, attention mask and labels.

Rows are taken one by one, or as a padded batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, final

import numpy as np

from tokenlake.base.arrays import Int32, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.base.result import Err, Ok, Result, attempt
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.stages import TokenizerConfig
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.budgets import BudgetStrategy
from tokenlake.etl.text.cut import CutCount, CutCounter
from tokenlake.etl.text.labeller import (
    ANY_LENGTH,
    EXAMPLE_COLUMNS,
    ProcessedExample,
    Tokens,
    bad_row,
    prompt_labeller,
    resolved_prompt,
)
from tokenlake.etl.text.lengths import LengthManager
from tokenlake.etl.text.padding import pad
from tokenlake.etl.text.truncation import SIDES, STRATEGIES, Side, Strategy
from tokenlake.etl.tokenizers.encoder import SPECIAL_TOKENS_IN_TEXT
from tokenlake.etl.tokenizers.files import TokenizerFiles, files_of

Padding = Literal["max_length", "longest", "do_not_pad"] | bool

_PADDING_NAMES: Final[dict[object, Any]] = {True: "longest", False: "do_not_pad"}
"""Strategies that booleans stand for."""
_PADDINGS: Final = ("max_length", "longest", "do_not_pad", True, False)

# Tokens merge differently in a shorter text, so the first attempt to shorten a row may
# miss by a few.
_SHORTENING_ATTEMPTS: Final = 8


@final
class PromptEngine:
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` of a row.

    Labels are -100 on prompt and padding.

    The prompt is rendered as a whole and tokenized as a whole. A token counts toward
    the loss if it holds a byte of the answer, or is the EOS after it.

    Args:
        config: Section ``prompt`` (``prompt_template`` in the second system's files).
        tokenizer: Hub id, directory, tokenizer.json file, or loaded tokenizer files; a
            `TokenizerConfig` also names other special tokens.
        max_length: Maximum number of tokens of a row, special tokens included.
        truncation: Strategy of cuts of longer rows: ``simple``, ``word``, ``sentence``
            or ``smart``; True means ``simple``. With False and ``none`` a longer row is
            an error.
        truncation_side: Side from which tokens are cut away. An EOS that is put back
            after a cut on the ``right`` does not count toward the loss.
        padding: Width of padded rows: ``max_length``, ``longest`` row of the batch
            (True), or ``do_not_pad`` (False).
        padding_side: Side on which padding is put.
        special_tokens_in_text: Treatment of rows that spell a special token, as in a
            build: ``literal``, ``encode`` or ``fail``.
        budget: Strategy by which the input columns of a row that is too long are
            shortened first, so that the answer is not cut (see
            :func:`tokenlake.etl.text.budgets.allocate`); None: the end of the row is
            cut.
        ratios: Weights of the columns, for the budget.
        priority: Columns, the most important first, for the budget.

    Raises:
        ConfigError: The configuration is wrong, or does not fit the tokenizer.

    Example:
        >>> import tokenlake as tl
        >>> prompt = {"template": "Q: {q} A: {a}", "label_column": "a"}
        >>> engine = tl.PromptEngine(prompt, "openai-community/gpt2", max_length=16)
        >>> example = engine.process({"q": "2 + 2?", "a": "4"}).unwrap()
        >>> example["input_ids"].shape, (example["labels"] != -100).sum().item()
        ((16,), 2)
    """

    def __init__(
        self,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles | TokenizerConfig,
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
        # 1. Options are checked when they are given, not at the first row.
        require_one_of("padding", padding, _PADDINGS)
        require_one_of("padding_side", padding_side, SIDES)
        require_one_of("truncation", truncation, (True, False, *STRATEGIES))
        require_one_of("truncation_side", truncation_side, SIDES)
        require_one_of(
            "special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT
        )
        files = files_of(tokenizer)
        prompt = resolved_prompt(config)
        _require_options_of_prompt(prompt, max_length, budget)
        # 2. The labeller, which renders, encodes and cuts.
        strategy: Strategy = "simple" if truncation else "none"
        if isinstance(truncation, str):
            strategy = truncation
        self._label = prompt.label_column or ""
        self._labeller = prompt_labeller(
            prompt,
            files,
            special_tokens_in_text,
            max_length=max_length,
            truncation=strategy,
            truncation_side=truncation_side,
        )
        # 3. Padding. It is masked, so any id will do if a tokenizer names none.
        self._padding: Any = _PADDING_NAMES.get(padding, padding)
        self._padding_side: Side = padding_side
        self._pad_id = 0 if files.fill_id is None else files.fill_id
        # 4. The columns that a budget shortens: all inputs, but not the answer.
        columns = self._labeller.renderer.columns or prompt.input_columns
        shortened_columns = [name for name in columns if name != prompt.label_column]
        self._shortened_columns = tuple(shortened_columns)
        self.shortened = 0
        """Number of rows of this process whose columns were shortened so far."""
        self._lengths: LengthManager | None = None
        if budget is not None:
            self._lengths = LengthManager(
                files,
                max_length=ANY_LENGTH,
                truncation="simple" if strategy == "none" else strategy,
                truncation_side=truncation_side,
                budget=budget,
                ratios=ratios,
                priority=priority,
                add_special_tokens=False,
            )
            # Empty texts find out whether ratios and priority name the columns of the
            # prompt.
            self._lengths.fit(dict.fromkeys(self._shortened_columns, ""), 0)

    @classmethod
    def from_config(
        cls,
        config: PromptConfig | Mapping[str, Any],
        tokenizer: str | os.PathLike[str] | TokenizerFiles | TokenizerConfig,
        **options: Any,
    ) -> Result[Self, TokenlakeError]:
        """Return the engine, or the error in its configuration."""
        return attempt(lambda: cls(config, tokenizer, **options))

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a row, special tokens included."""
        return self._labeller.max_length

    @property
    def cut(self) -> CutCounter:
        """Counts of the tokens cut from the rows of this process so far.

        Shortened columns are included.
        """
        return self._labeller.cut

    def process(
        self, row: Mapping[str, Any]
    ) -> Result[ProcessedExample, TokenlakeError]:
        """Return ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each.

        The details of an error are ``field_path`` (the column), ``expected`` and
        ``got``.
        """
        return self.process_batch([row]).map(_first_example)

    def process_batch(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> Result[dict[str, Int32] | dict[str, list[Any]], TokenlakeError]:
        """Return the rows as one batch: int32[n, L] each; unpadded, lists of n arrays.

        One row that cannot be used makes the whole batch an error. Its details are
        ``row``, the index of the first such row, and ``problem``, the message without
        that index.
        """
        # 1. Rows that fit. An error of a row gets its index.
        try:
            fitted_rows = self._fitted(rows)
        except BadRecordError as error:
            details = {**error.details, "problem": str(error)}
            return Err(
                BadRecordError(f"row {error.details['row']}: {error}", **details)
            )
        except TokenlakeError as error:
            return Err(error)
        # 2. Unpadded, each column is a list.
        if self._padding == "do_not_pad" or not fitted_rows:
            lists: dict[str, list[Any]] = {name: [] for name in EXAMPLE_COLUMNS}
            for tokens in fitted_rows:
                example = tokens.example()
                for name in EXAMPLE_COLUMNS:
                    lists[name].append(example[name])
            return Ok(lists)
        # 3. All rows have one width, so padding makes one rectangle.
        ids_of_rows: list[Any] = []
        loss_of_rows: list[Any] = []
        lengths: list[int] = []
        for tokens in fitted_rows:
            ids_of_rows.append(tokens.ids)
            loss_of_rows.append(tokens.loss)
            lengths.append(len(tokens.ids))
        offsets = offsets_of(lengths)
        (padded,) = pad(
            Ragged(np.concatenate(ids_of_rows), offsets),
            pad_id=self._pad_id,
            strategy=self._padding,
            side=self._padding_side,
            max_length=self._labeller.max_length,
            loss=np.concatenate(loss_of_rows),
        )
        return Ok({name: getattr(padded, name) for name in EXAMPLE_COLUMNS})

    def _fitted(self, rows: Sequence[Mapping[str, Any]]) -> list[Tokens]:
        """Return the tokens of each row, at most `max_length`.

        Raises:
            BadRecordError: A row cannot be used.
        """
        # Rows are copied: a caller's mapping may be no dict, and is never changed.
        checked_rows: list[Row] = []
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                type_name = type(row).__name__
                raise bad_row(
                    index,
                    "",
                    f"the row is a {type_name}",
                    "a mapping of columns",
                    type_name,
                )
            checked_rows.append(dict(row))
        if self._lengths is not None:
            checked_rows = [self._shortened(self._lengths, row) for row in checked_rows]
        # All rows are encoded in one call.
        fitted_rows: list[Tokens] = []
        for index, tokens in enumerate(self._labeller.tokens(checked_rows)):
            fitted_rows.append(self._labeller.fitted(index, tokens, self._label))
        return fitted_rows

    def _shortened(self, lengths: LengthManager, row: Row) -> Row:
        """Return a row whose input columns are short enough.

        The row itself where that is not possible or needed.
        """
        excess = self._excess(row)
        # A column without text keeps its place in ratios and priorities.
        texts: dict[str, str] = {}
        for name in self._shortened_columns:
            value = row.get(name)
            texts[name] = value if isinstance(value, str) else ""
        if excess <= 0 or not any(texts.values()):
            return row
        # Tokens beyond the limit are taken from the columns. A shorter text may have
        # other tokens, so that the excess is counted anew.
        whole_length = int(lengths.count(list(texts.values())).sum())
        budget = whole_length
        for _ in range(_SHORTENING_ATTEMPTS):
            budget -= excess
            if budget < 0:
                break
            shortened_row = dict(row)
            for name, shortened in lengths.fit(texts, budget).items():
                if texts[name]:
                    shortened_row[name] = shortened.text
            excess = self._excess(shortened_row)
            if excess <= 0:
                # The row is counted again when it is fitted, without the tokens that
                # are gone by then.
                dropped_tokens = whole_length - budget
                self.shortened += 1
                self._labeller.cut.add(
                    CutCount(cut=1, tokens=dropped_tokens, dropped=dropped_tokens)
                )
                return shortened_row
        return row

    def _excess(self, row: Row) -> int:
        """Return the number of tokens of a row beyond `max_length`; 0 or less if it fits."""
        (tokens,) = self._labeller.tokens([row])
        return self._labeller.length(tokens) - self._labeller.max_length


def _require_options_of_prompt(
    prompt: ResolvedPrompt, max_length: int, budget: BudgetStrategy | None
) -> None:
    """Require a positive length, and a budget only where rows have columns."""
    if max_length < 1:
        raise ConfigError(
            f"max_length is {max_length}, expected a positive number",
            field_path="max_length",
            expected="a positive number",
            got=repr(max_length),
        )
    if budget is not None and prompt.conversation:
        raise ConfigError(
            "budget: shortens the texts of columns, but the rows are conversations; leave it out",
            field_path="budget",
            expected="None",
            got=budget,
        )


def _first_example(batch: Mapping[str, Any]) -> ProcessedExample:
    """Return the first row of a batch."""
    return ProcessedExample({name: values[0] for name, values in batch.items()})
