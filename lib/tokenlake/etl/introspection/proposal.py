"""A proposed configuration for a source: a `datasets` entry, or a whole YAML file
with comments.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, final

import yaml

from tokenlake.base import numbers
from tokenlake.etl.introspection.inspection import NAMES, Group, Kind, Remark
from tokenlake.etl.introspection.mapping import ColumnMapping

_HEADS: Final = {
    "system": "System",
    "instruction": "Instruction",
    "input": "Input",
    "output": "Response",
}


def text_options(kind: Kind, mapping: ColumnMapping) -> dict[str, Any] | None:
    """Return the options of a dataset of this kind; None where nothing can be
    proposed.
    """
    columns = mapping.columns
    if kind == "chat":
        field = columns["messages"]
        if field in ("messages", "conversations", "conversation"):
            return {"content_field": field}
        return {"chat": {"messages_field": field}}
    if kind == "instruction":
        # A heading for each column, then a place for its value.
        parts: list[str] = []
        inputs: list[str] = []
        for role, heading in _HEADS.items():
            if role in columns:
                parts.append(f"### {heading}:\n{{{columns[role]}}}")
                if role != "output":
                    inputs.append(columns[role])
        template = "\n\n".join(parts)
        return {
            "prompt": {
                "template": template,
                "input_columns": inputs,
                "label_column": columns["output"],
            }
        }
    if kind == "preference":
        # Columns with the usual names need no option.
        options: dict[str, Any] = {"method": "dpo"}
        for name, role in (
            ("prompt", "instruction"),
            ("chosen", "chosen"),
            ("rejected", "rejected"),
        ):
            column = columns.get(role)
            if column is not None and column != name:
                options[f"{name}_field"] = column
        return {"preference": options}
    return None


_WIDTH: Final = 77  # fits a terminal of 80 with an indent
_SHOWN: Final = 10
SEQ_LENGTH: Final = 2048

_NOT_YET: Final = {
    **dict.fromkeys(
        ("text", "chat", "instruction", "preference"),
        "They belong in a separate dataset: inspect these files separately.",
    ),
    "unknown": "No column is clearly the text.",
}
_MADE: Final = {
    "chat": "Conversations, rendered by the tokenizer's chat template; only the assistant's turns count toward the "
    "loss.",
    "prompt": "A template combines the columns into one text; only the label counts toward the loss. Adapt it to "
    "your model.",
    "preference": "Set the method to one of dpo, orpo, cpo, reward, kto, bco and grpo.",
}
_PAIRS: Final = "Preferences are not packed: a row of the result is a row of the input."
_PACKED_CHATS: Final = (
    "As few rows of {:,} tokens as possible without cutting a conversation that fits one. With `strategy: greedy` rows "
    "are full, and many begin inside of a conversation."
)
_PACKED: Final = (
    "Documents end to end in rows of {:,} tokens, none lost. Without packing a row is a document, cut at "
    "tokenize.max_length."
)
_SPLITS: Final = {"train": 0.99, "validation": 0.01}
# From which on a hundredth of them is worth being a split.
_MANY_DOCUMENTS: Final = 1000
_SPLIT: Final = (
    "One document of a hundred is for validation, the same ones in every build: "
    'tl.open("STORE/NAME", split="validation"). Without these lines all are for training.'
)
_SPLIT_OF_FEW: Final = "All documents are for training. These lines would set some of them apart, by their share:"
_TEXT_MODES: Final = {
    "document": "A file is one document; with `text_mode: lines`, each line is one.",
    "lines": "Each line is a document; with `text_mode: document`, a whole file is one.",
}
_HOW: Final = {
    "explicit": "as given",
    "exact": "the name says so",
    "synonym": "a usual name for the text",
    "fuzzy": "its name is like {score:.0%} of a usual one: check it",
    "type": "its texts are by far the longest: please check",
}


def proposal(
    source: Iterable[str],
    groups: Iterable[Group],
    findings: Iterable[Remark],
    *,
    tokenizer: str | None,
    seq_length: int,
    looked: str,
) -> str:
    """Return YAML that :func:`tokenlake.load_config` reads, or only comments if nothing
    can be built.

    Args:
        source: Source, as the user named it.
        groups: Groups of the source's files.
        findings: Remarks on the files.
        tokenizer: Value of `default_tokenizer`; None leaves a line to fill in.
        seq_length: Number of tokens of a packed row.
        looked: Sentence about the files that were read.
    """
    groups = _of_one_dataset(list(groups))
    lines = _comment(f"Proposed by `tokenlake inspect {' '.join(source)}`. {looked}")
    lines += _findings_list(findings)
    lines.append("")

    runnable: list[Group] = []
    for group in groups:
        if group.entry is None:
            lines += _left_out(group)
        else:
            runnable.append(group)
    if not runnable:
        lines.append("# No configuration is proposed: a build could not run.")
        return _text(lines)

    lines.append("datasets:")
    for group in runnable:
        lines += _dataset(group)
    lines.append("")
    kinds = {group.kind for group in runnable}
    lines += _tokenizer_lines(tokenizer, is_chat="chat" in kinds)
    lines.append("")
    if "preference" in kinds:
        lines += _comment(_PAIRS)
    else:
        lines += _packing_lines(
            seq_length, has_masks=any(_sort(group) == "chat" for group in runnable)
        )
    has_split = any("split" in (group.entry or {}) for group in runnable)
    if not has_split:
        lines.append("")
        lines += _splits(runnable)
    return _text(lines)


def _of_one_dataset(groups: list[Group]) -> list[Group]:
    """Return the groups; those that cannot share a dataset with the first one have no
    entry.

    Raw texts, texts of which only parts count toward the loss, and pairs are built
    separately.
    """
    first_sort: str | None = None
    for group in groups:
        if group.entry is not None:
            first_sort = _sort(group)
            break
    separated: list[Group] = []
    for group in groups:
        if _sort(group) != first_sort:
            group = replace(group, entry=None)
        separated.append(group)
    return separated


def _findings_list(findings: Iterable[Remark]) -> list[str]:
    """Return remarks as a list in comments, the first ones of many."""
    remarks: list[str] = []
    for finding in findings:
        remarks.append(
            f"{finding.file}: {finding.what}" if finding.file else finding.what
        )
    if not remarks:
        return []
    lines = ["#"]
    for remark in remarks[: 2 * _SHOWN]:
        lines += _comment(f"- {remark}", hanging="  ")
    hidden_count = len(remarks) - 2 * _SHOWN
    if hidden_count > 0:
        lines.append(f"# - and {hidden_count:,} more")
    return lines


def _left_out(group: Group) -> list[str]:
    """Return comments on a group for which no dataset is proposed."""
    if group.kind == "damaged":
        reason = "None of the sampled files can be read."
    elif group.features:
        reason = _NOT_YET.get(group.kind, "")
    else:
        reason = "The sampled files contain no record."
    lines = _comment(f"Left out: {_summary(group)}. {reason}")
    if group.features:
        lines += _comment(f"Columns: {_columns(group)}.")
    strings = [feature.name for feature in group.features if feature.type == "string"]
    if group.kind == "unknown" and strings:
        names = ", ".join(strings[:_SHOWN])
        lines += _comment(
            f"Columns of strings: {names}; name the text in `content_field`."
        )
    lines.append("")
    return lines


def _packing_lines(seq_length: int, *, has_masks: bool) -> list[str]:
    """Return the section `pack`. Texts with a loss mask stay whole: an answer needs
    its question.
    """
    if has_masks:
        lines = _comment(_PACKED_CHATS.format(seq_length))
        return lines + _yaml(
            {
                "pack": {
                    "enabled": True,
                    "seq_length": seq_length,
                    "strategy": "best_fit",
                }
            }
        )
    lines = _comment(_PACKED.format(seq_length))
    return lines + _yaml({"pack": {"enabled": True, "seq_length": seq_length}})


def _tokenizer_lines(tokenizer: str | None, *, is_chat: bool) -> list[str]:
    """Return the line of the tokenizer, or a comment that asks for it."""
    if tokenizer is not None:
        return _yaml({"default_tokenizer": tokenizer})
    if is_chat:
        lines = _comment(
            "Missing: the tokenizer of a chat model, which has a chat template:"
        )
        lines.append("# default_tokenizer: meta-llama/Llama-2-7b-chat-hf")
    else:
        lines = _comment(
            "Missing: the tokenizer, as a Hub id, a directory or a tokenizer.json file:"
        )
        lines.append("# default_tokenizer: openai-community/gpt2")
    return lines


def _splits(groups: Iterable[Group]) -> list[str]:
    """Return the lines that divide documents into splits; a comment, if they are few
    or nobody knows their number.
    """
    splits = _yaml({"source": {"splits": _SPLITS}})
    documents = sum(group.rows or 0 for group in groups)
    if documents >= _MANY_DOCUMENTS:
        return _comment(_SPLIT) + splits
    lines = _comment(_SPLIT_OF_FEW)
    for line in splits:
        lines.append(f"# {line}")
    return lines


def _sort(group: Group) -> str:
    """Return the sort of dataset that a group belongs to: ``text``, ``chat`` (with a
    loss mask) or ``preference``.
    """
    if group.kind == "chat" and group.mapping.get("text") is None:
        return "chat"
    composed = _MADE.keys() & (group.entry or {}).keys()
    if not composed:
        return "text"
    if "preference" in composed:
        return "preference"
    return "chat"


def _text(lines: Iterable[str]) -> str:
    """Return lines as the text of a file."""
    return "\n".join(line.rstrip() for line in lines) + "\n"


@final
class _Dumper(yaml.SafeDumper):
    """YAML with texts of several lines as blocks."""

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Represent a text; one of several lines as a block."""
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _yaml(value: object) -> list[str]:
    """Return a value as lines of YAML."""
    options: Any = {"sort_keys": False, "allow_unicode": True, "width": 1 << 30}
    return yaml.dump(value, Dumper=_Dumper, **options).splitlines()


def _dataset(group: Group) -> list[str]:
    """Return a group of files as an entry of `datasets`, after comments with the
    reasons.
    """
    entry = dict(group.entry or {})
    remarks = [f"{_summary(group)}."]
    if group.has_columns:
        remarks.append(f"Columns: {_columns(group)}.")
    content_field = entry.get("content_field")
    if content_field is not None:
        remarks.append(f"{content_field}: {_content_reason(group)}.")
    for name in entry:
        if name in _MADE:
            remarks.append(_MADE[name])
    if group.formats.keys() & {"text", "text.gz", "text.zst"}:
        remarks.append(_TEXT_MODES[str(entry.get("text_mode") or "document")])

    body = _yaml([entry])
    if group.bad:
        reasons = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(group.bad.items())
        )
        remarks.append(
            f"{sum(group.bad.values()):,} of {group.sampled:,} sampled records are bad ({reasons}); a build fails at "
            "the first one, unless on_bad_record is quarantine."
        )
        body.append("  # on_bad_record: quarantine")

    lines: list[str] = []
    for remark in remarks:
        lines += _comment(remark, "  ")
    for line in body:
        lines.append(f"  {line}")
    return lines


def _content_reason(group: Group) -> str:
    """Return the reason why a column is proposed as the text."""
    column = group.mapping.get("text")
    if column is None and group.kind == "chat":
        return (
            "conversations, rendered by the tokenizer's chat template; only the assistant's turns count toward the "
            "loss"
        )
    reason = ""
    if column is not None:
        reason = _HOW[column.how].format(score=column.score)
    if group.kind != "text":
        reason += f"; it is used unchanged, although the columns are those of {NAMES[group.kind]}"
    return reason


def _summary(group: Group) -> str:
    """Return the name, kind, files and size of a group."""
    formats = ", ".join(
        f"{name} {numbers.count(count)}" for name, count in group.formats.items()
    )
    files = numbers.plural(group.files, "file")
    summary = f"{group.name}: {NAMES[group.kind]}, {files} ({formats}), {numbers.size(group.bytes)}"
    if group.rows is not None:
        summary += f", {group.records_in_words}"
    return summary


def _columns(group: Group) -> str:
    """Return the first columns of a group and their types."""
    columns = [
        f"{feature.name} ({feature.type})" for feature in group.features[:_SHOWN]
    ]
    hidden_count = len(group.features) - len(columns)
    if hidden_count:
        columns.append(f"{hidden_count} more")
    return ", ".join(columns) or "none"


def _comment(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Return a text as lines of a comment. Line ends and invisible characters of
    foreign names are escaped.

    Args:
        text: Text of the comment.
        indent: Blanks before each line.
        hanging: Blanks before the text of each line after the first.
    """
    plain = ""
    for character in text:
        plain += (
            character
            if character.isprintable()
            else character.encode("unicode_escape").decode()
        )
    return textwrap.wrap(
        plain,
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {hanging}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def entry_of(
    name: str, files: str | list[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a configuration's dataset in the order in which people
    read them.
    """
    order = (
        "type",
        "subset",
        "split",
        "delimiter",
        "content_field",
        "text_mode",
        *_MADE,
        "storage_options",
    )
    entry: dict[str, Any] = {"name": name, "data_files": files}
    for option in order:
        if options.get(option) is not None:
            entry[option] = options[option]
    return entry
