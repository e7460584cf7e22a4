"""The prompt engine of the second system: rows become ids, attention mask and labels, one by one or as a batch; and
supervised rows for a trainer that tokenizes while it reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self, final

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from tokenlake.arrays import Bools, Int32, Ragged, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.base.section import path_of
from tokenlake.columns import IGNORED
from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedPrompt
from tokenlake.config.stages import TokenizerConfig
from tokenlake.config.texts import PromptConfig
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.result import Err, Ok, Result, attempt
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.cut import CutCount, CutCounter
from tokenlake.text.lengths import BudgetStrategy, LengthManager, pad
from tokenlake.text.prompt_renderer import check_end, open_prompt
from tokenlake.text.transform import Renderer, Transform
from tokenlake.text.truncation import SIDES, STRATEGIES, Side, Strategy, truncate
from tokenlake.tokenizers.encoder import SPECIAL_TOKENS_IN_TEXT, Encoder
from tokenlake.tokenizers.files import TokenizerFiles, files_of

Padding = Literal["max_length", "longest", "do_not_pad"] | bool

_NAMES: Final = ("input_ids", "attention_mask", "labels")
_PADDING: Final[dict[object, Any]] = {True: "longest", False: "do_not_pad"}
_PADDINGS: Final = ("max_length", "longest", "do_not_pad", True, False)
_ANY_LENGTH: Final = 1 << 30
_TRIES: Final = 8  # tokens merge differently in a shorter text, so that the first try may miss by a few
_EXPECTED: Final = {
    "null_column": "a value in every column of the template",
    "not_a_string": "text, a number or a boolean",
    "empty_label": "an answer that is not empty",
    "special_token_in_text": "text without special tokens",
    "invalid_utf8": "whole characters",
}


@final
class ProcessedExample(dict[str, Int32]):
    """A row as a trainer takes it: ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each, by key or name."""

    @property
    def input_ids(self) -> Int32:
        """The ids, int32[L]."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Int32:
        """1 for the row's own ids, 0 for padding: int32[L]."""
        return self["attention_mask"]

    @property
    def labels(self) -> Int32:
        """The ids where they bear loss, -100 elsewhere: int32[L]."""
        return self["labels"]

    @property
    def input_length(self) -> int:
        """The number of ids before the first that bears loss, without padding."""
        own = self["labels"][self["attention_mask"] == 1]
        learned = np.flatnonzero(own != IGNORED)
        return int(learned[0]) if len(learned) else len(own)


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one text, int32[k], which of them bear loss, bool[k], and the text, large_string[1]."""

    ids: Int32
    loss: Bools
    text: pa.LargeStringArray

    def example(self) -> ProcessedExample:
        """Return input_ids, attention_mask and labels, int32[k] each."""
        labels = np.where(self.loss, self.ids, np.int32(IGNORED))
        return ProcessedExample(zip(_NAMES, (self.ids, np.ones_like(self.ids), labels), strict=True))


@final
class Labeller:
    """Makes ids and labels of rows: what a renderer makes of them, tokenized whole, framed by BOS and EOS, and cut.

    Args:
        special_tokens_in_text: ``encode``: special tokens that a text spells become control ids; they do in any case
            where the renderer's own are to.
        max_length: most tokens, all special ones included.
        truncation, truncation_side: how and where what is too long is cut; ``none`` makes it an error.
        bos: whether a text begins with the tokenizer's prefix. What it spells itself is not put there again.
        suffix: what it ends with; None: the tokenizer's suffix.
        eos_id: what the suffix ends with in any case.
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
        mode = "encode" if renderer.control_tokens or special_tokens_in_text == "encode" else "literal"
        self.encoder: Final = Encoder(
            files, engine="tokenizers", special_tokens_in_text=mode, sample_rate=0.0
        )
        self.renderer: Final = renderer
        self._prefix = self.encoder.prefix if bos else ()
        after = self.encoder.suffix if suffix is None else suffix
        self._suffix = after if eos_id is None or after[-1:] == (eos_id,) else (*after, eos_id)
        self.max_length: Final = max_length
        self.cut: Final = CutCounter("prompts", max_length)
        self._truncation: tuple[Strategy, Side] = (truncation, truncation_side)

    def tokens(self, rows: list[Row]) -> list[Tokens]:
        """Return the ids of rows, as many as there are; BadRecordError names the first that cannot be used."""
        made = self.renderer.render(Rows(objects=rows))
        if made.bad:
            index, fault = made.bad[0]
            raise _unusable(index, rows[index], fault)
        if not rows:
            return []
        assert made.spans is not None
        encoded, loss = self.encoder.encode_spans(made.text, made.spans)
        edges = encoded.offsets[1:-1]
        pairs = zip(np.split(encoded.ids, edges), np.split(loss, edges), strict=True)
        return [Tokens(*pair, made.text.slice(at, 1)) for at, pair in enumerate(pairs)]

    def length(self, tokens: Tokens) -> int:
        """Return how many tokens a text has with what is put around it."""
        before, after = self._lacking(tokens.ids)
        return len(before) + len(tokens.ids) + len(after)

    def fitted(self, index: int, tokens: Tokens, column: str = "") -> Tokens:
        """Return a whole text of at most `max_length` tokens.

        On the side where it is cut, what it spelled itself is gone, and is put there; an EOS after half an answer
        bears no loss: nobody is to learn to stop there.

        Raises:
            BadRecordError: it is too long and may not be cut, or no token to learn is left of row `index`.
        """
        before, after = self._lacking(tokens.ids)
        ids, loss, whole = tokens.ids, tokens.loss, self.length(tokens)
        ends = bool(loss.any())
        if whole > self.max_length:
            if self._truncation[0] == "none":
                told = f"the prompt has {whole} tokens, max_length is {self.max_length} and truncation is off"
                raise _bad(
                    index, "max_length", told, f"at most {self.max_length} tokens", whole, reason="too_long"
                )
            if self._truncation[1] == "right":
                ends, after = False, self._suffix
            else:
                before = self._prefix
            room = max(0, self.max_length - len(before) - len(after))
            _, start, stop = self.encoder.encode_places(tokens.text)
            cut = truncate(str(tokens.text[0].as_py()), start, stop, room, *self._truncation)
            ids, loss = ids[cut.first : cut.last], loss[cut.first : cut.last]
            ends = ends and bool(loss.any())
        ids = np.concatenate([np.array(before, np.int32), ids, np.array(after, np.int32)])
        loss = np.concatenate([np.zeros(len(before), np.bool_), loss, np.full(len(after), ends)])
        made = Tokens(ids[: self.max_length], loss[: self.max_length], tokens.text)
        if made.loss.any():
            dropped = whole - len(made.ids)
            self.cut.add(CutCount(documents=1, cut=int(dropped > 0), tokens=whole, dropped=dropped))
            self.cut.judge(is_end=False)
            return made
        told = f"no token to learn is left of {whole}, max_length is {self.max_length}"
        told = f"{told}: raise it, shorten the prompt, or leave such rows out"
        reason = "too_long" if whole > self.max_length else "nothing_to_learn"
        raise _bad(index, column, told, "at least one token to learn", 0, reason=reason)

    def _lacking(self, ids: Int32) -> tuple[tuple[int, ...], tuple[int, ...]]:
        before, after = self._prefix, self._suffix
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
        tokenizer: Hub id, directory, tokenizer.json file, or its files; a `TokenizerConfig` also names other special
            tokens.
        max_length: most tokens of a row, special ones included.
        truncation: cut what is longer, by one of the strategies of :mod:`tokenlake.text.truncation`; True is
            ``simple``; False and ``none`` make it an error.
        truncation_side: ``right``: the end goes, and the EOS that is put there bears no loss; ``left``: the beginning.
        padding: ``max_length``, ``longest`` of a batch (True), ``do_not_pad`` (False).
        padding_side: where padding goes.
        special_tokens_in_text: ``literal``, ``encode`` or ``fail``, as in a build.
        budget, ratios, priority: where a row is too long, its input columns are shortened first, by these shares (see
            :func:`tokenlake.text.lengths.allocate`), so that the answer is not what is cut; None: the end is.

    Raises:
        ConfigError: the configuration is wrong, or does not fit the tokenizer.
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
        for name, value, allowed in (
            ("padding", padding, _PADDINGS),
            ("padding_side", padding_side, SIDES),
            ("truncation", truncation, (True, False, *STRATEGIES)),
            ("truncation_side", truncation_side, SIDES),
            ("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT),
        ):
            require_one_of(name, value, allowed)
        files = files_of(tokenizer)
        prompt = resolved_prompt(config)
        if max_length < 1:
            told = f"max_length is {max_length}, expected a positive number"
            raise ConfigError(
                told, field_path="max_length", expected="a positive number", got=repr(max_length)
            )
        if budget is not None and prompt.conversation:
            told = "budget: shortens the texts of columns, but the rows are conversations; leave it out"
            raise ConfigError(told, field_path="budget", expected="None", got=budget)
        strategy: Strategy = truncation if isinstance(truncation, str) else "simple" if truncation else "none"
        self._label = prompt.label_column or ""
        self._labeller = prompt_labeller(
            prompt,
            files,
            special_tokens_in_text,
            max_length=max_length,
            truncation=strategy,
            truncation_side=truncation_side,
        )
        self._padding: Any = _PADDING.get(padding, padding)
        self._padding_side: Side = padding_side
        # Padding is masked, so that any id will do where a tokenizer names none.
        self._pad_id = 0 if files.fill_id is None else files.fill_id
        used = self._labeller.renderer.columns or prompt.input_columns
        self._shortened_columns = tuple(name for name in used if name != prompt.label_column)
        self.shortened = 0
        """Rows of this process whose columns were shortened so far."""
        self._lengths: LengthManager | None = None
        if budget is not None:
            self._lengths = LengthManager(
                files,
                max_length=_ANY_LENGTH,
                truncation="simple" if strategy == "none" else strategy,
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
        tokenizer: str | os.PathLike[str] | TokenizerFiles | TokenizerConfig,
        **options: Any,
    ) -> Result[Self, TokenlakeError]:
        """Return the engine, or what is wrong with its configuration."""
        return attempt(lambda: cls(config, tokenizer, **options))

    @property
    def max_length(self) -> int:
        """Most tokens of a row, special ones included."""
        return self._labeller.max_length

    @property
    def cut(self) -> CutCounter:
        """What was cut from the rows of this process so far, shortened columns too."""
        return self._labeller.cut

    def process(self, row: Mapping[str, Any]) -> Result[ProcessedExample, TokenlakeError]:
        """Return ``input_ids``, ``attention_mask`` and ``labels`` of a row, int32[L] each.

        The error says ``field_path`` (the column), ``expected`` and ``got``.
        """
        return self.process_batch([row]).map(
            lambda batch: ProcessedExample({name: values[0] for name, values in batch.items()})
        )

    def process_batch(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> Result[dict[str, Int32] | dict[str, list[Any]], TokenlakeError]:
        """Return the rows as one batch: int32[n, L] each; unpadded, lists of n arrays.

        The first row that cannot be used makes the whole an error. Its details are ``row``, its index, and ``problem``,
        the message without it.
        """
        label, checked = self._labeller, list[Row]()
        try:
            for index, row in enumerate(rows):
                if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                    kind = type(row).__name__
                    raise _bad(index, "", f"the row is a {kind}", "a mapping of columns", kind)
                checked.append(dict(row))
            if self._lengths is not None:
                checked = [self._shortened(self._lengths, row) for row in checked]
            made = [label.fitted(at, tokens, self._label) for at, tokens in enumerate(label.tokens(checked))]
        except BadRecordError as error:
            details = {**error.details, "problem": str(error)}
            return Err(BadRecordError(f"row {error.details['row']}: {error}", **details))
        except TokenlakeError as error:
            return Err(error)
        if self._padding == "do_not_pad" or not made:
            examples = [tokens.example() for tokens in made]
            return Ok({name: [example[name] for example in examples] for name in _NAMES})
        ids = np.concatenate([tokens.ids for tokens in made])
        (padded,) = pad(
            Ragged(ids, offsets_of([len(tokens.ids) for tokens in made])),
            pad_id=self._pad_id,
            strategy=self._padding,
            side=self._padding_side,
            max_length=label.max_length,
            loss=np.concatenate([tokens.loss for tokens in made]),
        )
        return Ok({name: getattr(padded, name) for name in _NAMES})

    def _shortened(self, lengths: LengthManager, row: Row) -> Row:
        """Shorten the input columns of a row that is too long; as it is where that is not enough."""
        over = self._over(row)
        # A column without text keeps its place in ratios and priorities.
        found = {name: row.get(name) for name in self._shortened_columns}
        texts = {name: value if isinstance(value, str) else "" for name, value in found.items()}
        if over <= 0 or not any(texts.values()):
            return row
        before = int(lengths.count(list(texts.values())).sum())
        total = before
        for _ in range(_TRIES):
            total -= over
            if total < 0:
                break
            cut = lengths.fit(texts, total)
            short = {**row, **{name: each.text for name, each in cut.items() if texts[name]}}
            over = self._over(short)
            if over <= 0:
                # The row is counted again when it is fitted, without what is gone by then.
                dropped = before - total
                self.shortened += 1
                self._labeller.cut.add(CutCount(cut=1, tokens=dropped, dropped=dropped))
                return short
        return row

    def _over(self, row: Row) -> int:
        """Return how many tokens a row has too many."""
        (tokens,) = self._labeller.tokens([row])
        return self._labeller.length(tokens) - self._labeller.max_length


def _unusable(index: int, row: Row, fault: Fault) -> BadRecordError:
    column = fault.column
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


def prompt_labeller(
    prompt: ResolvedPrompt, files: TokenizerFiles, special_tokens_in_text: str, **options: Any
) -> Labeller:
    """Return the labeller of prompts; `options` as :class:`Labeller` has them.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an answer would have no end.
    """
    check_end(prompt, files, files.eos_id)
    renderer = open_prompt(prompt, files, special_tokens_in_text)
    suffix: tuple[int, ...] | None = () if not prompt.add_eos else None
    if prompt.add_eos and prompt.format_type != "chat":  # a chat ends its answer itself
        options["eos_id"] = files.eos_id
    return Labeller(files, renderer, special_tokens_in_text, bos=prompt.add_bos, suffix=suffix, **options)


def _bad(
    index: int, column: str, what: str, expected: str, got: object, *, reason: str = "prompt"
) -> BadRecordError:
    return BadRecordError(what, row=index, field_path=column, expected=expected, got=got, reason=reason)


@final
class SupervisedRows(Transform):
    """Makes ``input_ids``, ``attention_mask`` and ``labels`` (lists of ints) of a row, for supervised fine-tuning.

    A row has a conversation (``messages``, ``conversations`` or ``conversation``), which the tokenizer's chat template
    renders, or a prompt and its completion, or a text. A conversation gives what an unpacked build makes of it.

    Args:
        tokenizer: a Hub id, a folder, a file, files that were read already, or a fast tokenizer of transformers.
        max_length: most ids of a row, whose end is cut; None: any number.
        text_field: of rows that are plain text, all of which bears loss.
        messages_field: of the conversation; None: one of the three.
        mask_prompt: labels are -100 on all but what the assistant says, or the completion; False: on nothing but BOS.
        add_eos: texts and completions end with EOS; a conversation ends as its template says.
        truncation: False: a row longer than `max_length` is a bad one, and none is cut.
        formatting_func: applied to every row first: returns another row, or its text.
        prompt_field, completion_field: names of the fields of rows without a conversation.
        special_tokens_in_text: ``fail``: a row that spells a special token is refused; ``encode``: it becomes one.

    Raises:
        ConfigError: the tokenizer cannot do what rows need; of a chat template, when the first conversation comes.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None = None,
        text_field: str = "text",
        messages_field: str | None = None,
        mask_prompt: bool = True,
        add_eos: bool = True,
        truncation: bool = True,
        formatting_func: Callable[[Row], Row | str] | None = None,
        *,
        prompt_field: str = "prompt",
        completion_field: str = "completion",
        special_tokens_in_text: Literal["fail", "encode"] = "fail",
    ) -> None:
        if max_length is not None and max_length < 1:
            raise ConfigError(f"max_length is {max_length}, expected a positive number, or None")
        self._files = files_of(tokenizer)
        self._masked, self._special, self._ends = mask_prompt, special_tokens_in_text, add_eos
        self._format = formatting_func
        self._conversations = MESSAGES_FIELDS if messages_field is None else (messages_field,)
        self._pair, self._text = (prompt_field, completion_field), (text_field,)
        self._options: Final[dict[str, Any]] = {
            "max_length": max_length or _ANY_LENGTH,
            "truncation": "simple" if truncation else "none",
        }
        self._labellers: dict[tuple[str, ...], Labeller] = {}

    def __call__(self, example: Row) -> Row:
        """Return the row of the trainer.

        Raises:
            BadRecordError: the row has none of the three, cannot be rendered, or nothing to learn is left of it.
        """
        if self._format is not None:
            made = self._format(example)
            example = {self._text[0]: made} if isinstance(made, str) else made
        kinds = (*((name,) for name in self._conversations), self._pair, self._text)
        names = next((kind for kind in kinds if all(example.get(name) is not None for name in kind)), None)
        if names is None:
            raise BadRecordError(
                f"the row has neither a conversation ({', '.join(self._conversations)}) nor {self._pair[0]!r} and "
                f"{self._pair[1]!r} nor {self._text[0]!r}; its fields are {', '.join(example) or 'none'}",
                reason="missing_field",
            )
        spoken = names[0] in self._conversations
        if names not in self._labellers:
            section: dict[str, Any] = {
                "format_type": "chat",
                "input_columns": names,
                "mask_input": self._masked,
            }
            if not spoken:  # the fields one after the other; the last one of two is what is learned
                answer = {"label_column": names[-1], "mask_input": self._masked} if len(names) > 1 else {}
                template = "".join(f"{{{{ {name} }}}}" for name in names)
                section = {"template": template, "add_eos": self._ends, **answer}
            self._labellers[names] = prompt_labeller(
                resolved_prompt(section), self._files, self._special, **self._options
            )
        label = self._labellers[names]
        row = example if spoken else {name: example[name] for name in names}
        (tokens,) = label.tokens([row])
        return {name: values.tolist() for name, values in label.fitted(0, tokens).example().items()}


SFTPreprocessTransform: Final = partial(SupervisedRows, mask_prompt=False)
"""As :class:`SupervisedRows`; nothing but BOS is masked, unless ``mask_prompt=True``."""
