"""Names and types of columns as plain values, known without Arrow.

They are those of kept fields, and those that trainers read.

**Columns of preference trainers**, by method and by whose trainers they are: read on
their sources in 2026 (TRL 1.10, EasyDeL 0.3). A row is made of parts: a ``prompt`` and
its answers (``chosen`` and ``rejected``, or one ``completion``), each a run of ids. Two
forms are in use:

- the answers alone beside the prompt (TRL: dpo, kto: ``prompt_ids, chosen_ids,
  rejected_ids``);
- prompt and answer together, with an attention mask and with labels that are -100 over
  the prompt (EasyDeL, and TRL's orpo, cpo and bco: ``prompt_input_ids,
  chosen_input_ids, chosen_attention_mask, chosen_labels ...``).

| method | trl | easydel |
|---|---|---|
| dpo | ``prompt_ids, chosen_ids, rejected_ids`` | together |
| orpo, cpo | together | together |
| kto | ``prompt_ids, completion_ids, label`` | together, ``label`` |
| bco | together, ``label`` | together, ``label`` |
| reward | ``chosen_ids, rejected_ids``, each with its prompt | ``input_ids_chosen, attention_mask_chosen ...`` |
| grpo | ``prompt`` (text), ``prompt_input_ids`` | ``input_ids, attention_mask`` |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias, final, get_args

ColumnType: TypeAlias = str | dict[str, Any]
"""A type that travels in jobs, stands in manifests and is part of identity: a name
(``int64``, ``large_string``, ``timestamp[us, tz=UTC]``; as Arrow spells it), ``{"list":
type}`` or ``{"struct": [[name, type], ...]}``. ``json`` stands for values of several
types: each is JSON text. ``null`` is the type of a column without a value so far.
"""

JSON: Final = "json"
NULL: Final = "null"

RESERVED: Final = frozenset(
    {"input_ids", "attention_mask", "loss_mask", "labels", "file", "position"}
    | {"split", "shard", "row", "filename", "file_row_number"}
)
"""Names, in lower case, that a kept field cannot have: columns of every row, and
those that SQL views add.
"""

Method = Literal["dpo", "orpo", "cpo", "reward", "kto", "bco", "grpo"]
Trainer = Literal["easydel", "trl"]
Part = Literal["prompt", "chosen", "rejected", "completion"]
Holds = Literal["ids", "mask", "labels", "label", "text"]

METHODS: Final[tuple[Method, ...]] = get_args(Method)
TRAINERS: Final[tuple[Trainer, ...]] = get_args(Trainer)

IGNORED: Final = -100
"""Label of a token that does not count toward the loss."""


@final
@dataclass(frozen=True, slots=True)
class TrainerColumn:
    """A column of a preference dataset.

    Attributes:
        name: Name of the column.
        holds: Content of the column: ``ids``; ``mask`` (1 for each id); ``labels`` (the
            last part's ids, the rest :data:`IGNORED`); ``label`` (true for a good
            answer); ``text`` (of the prompt).
        parts: Parts of the row whose ids it holds, one after the other.
    """

    name: str
    holds: Holds
    parts: tuple[Part, ...] = ()


@cache
def parts_of(method: Method) -> tuple[Part, ...]:
    """Return the parts of a method's rows: runs of ids that are counted once each.

    A reward model scores whole texts, so that its chosen and rejected part hold the
    prompt too.
    """
    if method == "grpo":
        return ("prompt",)
    if method == "reward":
        return ("chosen", "rejected")
    if method in ("kto", "bco"):
        return ("prompt", "completion")
    return ("prompt", "chosen", "rejected")


@cache
def text_weights(method: Method) -> tuple[int, ...]:
    """Return the weight of each text of a document in its number of tokens.

    Every part of the document counts once.


    The texts are the prompt and then the prompt with each answer; for reward, which has
    no prompt, the whole texts.
    """
    if method == "reward":
        return 1, 1
    # Each whole text counts once, and so counts the prompt too often by all but one.
    answer_count = len(parts_of(method)) - 1
    return (1 - answer_count, *(1,) * answer_count)


@cache
def columns_for(method: Method, trainer: Trainer) -> tuple[TrainerColumn, ...]:
    """Return the columns that the trainer of a method reads, in their order.

    The module's table lists them.
    """
    if method == "grpo":
        if trainer == "trl":
            prompt_ids = TrainerColumn("prompt_input_ids", "ids", ("prompt",))
            return TrainerColumn("prompt", "text"), prompt_ids
        return _masked("input_ids", "attention_mask", ("prompt",))

    columns: list[TrainerColumn] = []
    parts = parts_of(method)
    answers: list[Part] = [part for part in parts if part != "prompt"]
    if trainer == "trl" and method in ("dpo", "kto", "reward"):
        # The answers alone beside the prompt.
        for part in parts:
            columns.append(TrainerColumn(f"{part}_ids", "ids", (part,)))
    elif method == "reward":
        # Whole texts, each with a mask; the names have the part at the end.
        for part in answers:
            columns += _masked(f"input_ids_{part}", f"attention_mask_{part}", (part,))
    else:
        # Prompt and answer together, with a mask and labels.
        columns += _masked("prompt_input_ids", "prompt_attention_mask", ("prompt",))
        for part in answers:
            whole_text: tuple[Part, ...] = ("prompt", part)
            mask_name = f"{part}_attention_mask"
            columns += _masked(f"{part}_input_ids", mask_name, whole_text)
            columns.append(TrainerColumn(f"{part}_labels", "labels", whole_text))
    # A single answer is good or bad; a pair says so by its names.
    if answers == ["completion"]:
        columns.append(TrainerColumn("label", "label"))
    return tuple(columns)


def _masked(
    ids: str, mask: str, parts: tuple[Part, ...]
) -> tuple[TrainerColumn, TrainerColumn]:
    """Return a column of ids and its attention mask."""
    return TrainerColumn(ids, "ids", parts), TrainerColumn(mask, "mask", parts)


@cache
def id_weights(method: Method, trainer: Trainer) -> dict[str, int]:
    """Return the weight of each column of ids in the number of tokens.

    Every part of a row counts once.
    """
    id_columns: list[TrainerColumn] = []
    for column in columns_for(method, trainer):
        if column.holds == "ids":
            id_columns.append(column)
    # A column whose parts begin another one is counted there already.
    repeated_parts = [column.parts[:-1] for column in id_columns]
    weights: dict[str, int] = {}
    for column in id_columns:
        weights[column.name] = 1 - repeated_parts.count(column.parts)
    return weights
