"""What a configuration says of rows that are no plain text: how a text is made of them."""

from __future__ import annotations

from typing import Any, Final

from tokenlake.discovery.kinds import Kind
from tokenlake.discovery.mapping import ColumnMapping

_HEADS: Final = {"system": "System", "instruction": "Instruction", "input": "Input", "output": "Response"}


def text_options(kind: Kind, mapping: ColumnMapping) -> dict[str, Any] | None:
    """Return the options of a dataset of this kind; None where nothing can be proposed."""
    columns = mapping.columns
    if kind == "chat":
        return (
            {"content_field": columns["messages"]}
            if _usual(columns)
            else {"chat": {"messages_field": columns["messages"]}}
        )
    if kind == "instruction":
        return {"prompt": _prompt(columns)}
    if kind == "preference":
        return {"preference": _preference(columns)}
    return None


def _usual(columns: dict[str, str]) -> bool:
    return columns["messages"] in ("messages", "conversations", "conversation")


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
