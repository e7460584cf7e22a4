"""What a dataset is for, by its columns: text, chats, instructions or preferences; and the options that this needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from tokenlake.introspection.mapping import ROLES, ColumnMapper, ColumnMapping, MappedColumn, rank_of, role_of
from tokenlake.introspection.schema import Shape
from tokenlake.sources.rows import value_at

Kind = Literal["text", "instruction", "chat", "preference", "unknown", "empty", "damaged"]

NAMES: dict[Kind, str] = {
    "text": "raw text",
    "instruction": "instructions and answers",
    "chat": "chats",
    "preference": "preferences",
    "unknown": "no text found",
    "empty": "no records",
    "damaged": "damaged",
}


def mapped(
    mapper: ColumnMapper,
    columns: Mapping[str, Shape],
    rows: Sequence[Mapping[str, Any]],
    explicit: Mapping[str, str],
) -> ColumnMapping:
    """Find the columns of every role; a text that is no top-level column is looked for inside of objects.

    Such a text is named by its path: ``data.text``.
    """
    columns = _leaning(columns, rows)
    lengths = {name: mean_length(rows, name) for name, shape in columns.items() if shape.is_text}
    direct = {role: name for role, name in explicit.items() if name in columns or "." not in name}
    found = mapper.map(ROLES, columns, explicit=direct, lengths=lengths)
    if "text" in explicit.keys() - direct.keys():
        return _with_text(found, MappedColumn("text", explicit["text"], "explicit", 1.0))
    inner = None if found.get("text") is not None or kind_of(found) != "unknown" else _inner_text(columns)
    return found if inner is None else _with_text(found, MappedColumn("text", inner, "synonym", 1.0))


def _leaning(columns: Mapping[str, Shape], rows: Iterable[Mapping[str, Any]]) -> dict[str, Shape]:
    """Take a column of several types for strings where most values are: the others are bad records."""
    found = dict(columns)
    for name, shape in columns.items():
        values = [row[name] for row in rows if row.get(name) is not None] if shape.kind == "mixed" else []
        if values and 2 * sum(isinstance(value, str) for value in values) >= len(values):
            found[name] = Shape("string", nullable=shape.nullable)
    return found


def _with_text(mapping: ColumnMapping, text: MappedColumn) -> ColumnMapping:
    """Return `mapping` with the text elsewhere."""
    others = tuple(entry for entry in mapping.mapped if entry.role != "text")
    unmapped = tuple(entry for entry in mapping.unmapped if entry.role != "text")
    return ColumnMapping((text, *others), unmapped)


def kind_of(mapping: ColumnMapping) -> Kind:
    """Judge by the roles that have a column."""
    roles = mapping.columns.keys()
    if {"chosen", "rejected"} <= roles:
        return "preference"
    if "messages" in roles:
        return "chat"
    if {"instruction", "output"} <= roles:
        return "instruction"
    return "text" if "text" in roles else "unknown"


def mean_length(rows: Iterable[Mapping[str, Any]], path: str) -> float:
    """Return the mean characters of the strings in a column of the sample, 0.0 if there are none."""
    sizes = [len(value) for row in rows if isinstance(value := value_at(row, path), str)]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _inner_text(columns: Mapping[str, Shape]) -> str | None:
    """The likeliest text one or two levels down."""
    paths = [
        (depth, rank_of(name), path)
        for depth, path, name, shape in _inner(columns, "", 1)
        if shape.is_text and role_of(name) == "text"
    ]
    return min(paths)[2] if paths else None


def _inner(columns: Mapping[str, Shape], before: str, depth: int) -> list[tuple[int, str, str, Shape]]:
    found: list[tuple[int, str, str, Shape]] = []
    for name, shape in columns.items():
        path = f"{before}{name}"
        if depth > 1:
            found.append((depth, path, name, shape))
        if shape.kind == "struct" and depth < 3:
            found += _inner(dict(shape.fields), f"{path}.", depth + 1)
    return found


_HEADS: Final = {"system": "System", "instruction": "Instruction", "input": "Input", "output": "Response"}


def text_options(kind: Kind, mapping: ColumnMapping) -> dict[str, Any] | None:
    """Return the options of a dataset of this kind; None where nothing can be proposed."""
    columns = mapping.columns
    if kind == "chat":
        field = columns["messages"]
        usual = field in ("messages", "conversations", "conversation")
        return {"content_field": field} if usual else {"chat": {"messages_field": field}}
    if kind == "instruction":
        return {"prompt": _prompt(columns)}
    if kind == "preference":
        return {"preference": _preference(columns)}
    return None


def _prompt(columns: dict[str, str]) -> dict[str, Any]:
    roles = [role for role in _HEADS if role in columns]
    template = "\n\n".join(f"### {_HEADS[role]}:\n{{{columns[role]}}}" for role in roles)
    inputs = [columns[role] for role in roles if role != "output"]
    return {"template": template, "input_columns": inputs, "label_column": columns["output"]}


def _preference(columns: dict[str, str]) -> dict[str, Any]:
    found = {"method": "dpo"}
    fields = {"prompt_field": "instruction", "chosen_field": "chosen", "rejected_field": "rejected"}
    for option, role in fields.items():
        if role in columns and columns[role] != option.removesuffix("_field"):
            found[option] = columns[role]
    return found
