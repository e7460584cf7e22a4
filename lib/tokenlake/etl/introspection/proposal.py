"""A proposed configuration for a source: a dataset's entry, or a whole YAML file.

The file has comments, so that a person who knows neither the data nor the options can
decide. Everything that was inspected and is not proposed is a comment, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, final

import yaml

from tokenlake.base import numbers
from tokenlake.config.stages import SourceStageConfig
from tokenlake.etl.introspection.inspection import NAMES, Group, Kind, Remark
from tokenlake.etl.introspection.mapping import ColumnMapping
from tokenlake.etl.sources.bad_reasons import sufficient_fraction

# Role -> heading of its part in the template of an instruction, in this order.
_HEADINGS: Final = {
    "system": "System",
    "instruction": "Instruction",
    "input": "Input",
    "output": "Response",
}


def text_options(kind: Kind, mapping: ColumnMapping) -> dict[str, Any] | None:
    """Return the options of a dataset of a kind; None if nothing can be proposed."""
    columns = mapping.columns
    # Chats with the usual field need no section: the template is applied to it.
    if kind == "chat":
        messages_field = columns["messages"]
        if messages_field in ("messages", "conversations", "conversation"):
            return {"content_field": messages_field}
        return {"chat": {"messages_field": messages_field}}
    if kind == "instruction":
        # A heading for each column, then a place for its value.
        parts: list[str] = []
        inputs: list[str] = []
        for role, heading in _HEADINGS.items():
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
        fields = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
        for field_name, role in fields.items():
            column = columns.get(role)
            if column is not None and column != field_name:
                options[f"{field_name}_field"] = column
        return {"preference": options}
    return None


_COMMENT_WIDTH: Final = 77  # fits a terminal of 80 with an indent
_SHOWN_COLUMNS: Final = 10  # columns of a group in a comment
_SHOWN_FINDINGS: Final = 20  # remarks on files in a comment

SEQ_LENGTH: Final = 2048
"""Number of tokens of a packed row in a proposal."""

# Kind -> the reason why a group of files has no entry.
_REASONS_LEFT_OUT: Final = {
    **dict.fromkeys(
        ("text", "chat", "instruction", "preference"),
        "They belong in a separate dataset: inspect these files separately.",
    ),
    "unknown": "No column is clearly the text.",
}

# Option that composes the text of an entry -> its explanation.
_COMPOSITIONS: Final = {
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
_MANY_DOCUMENTS: Final = 1000  # from which a hundredth of them is worth being a split
_SPLIT: Final = (
    "One document of a hundred is for validation, the same ones in every build: "
    'tl.open("STORE/NAME", split="validation"). Without these lines all are for training.'
)
_SPLIT_OF_FEW: Final = "All documents are for training. These lines would set some of them apart, by their share:"
_TEXT_MODES: Final = {
    "document": "A file is one document; with `text_mode: lines`, each line is one.",
    "lines": "Each line is a document; with `text_mode: document`, a whole file is one.",
}
_NOT_RENDERED: Final = (
    "Records were read and not rendered: `inspect` with a tokenizer of this machine (--tokenizer) and `tokenlake plan` "
    "also name those that cannot be rendered."
)
_DEFAULT_BAD_FRACTION: Final = SourceStageConfig().max_bad_fraction
# Step that found the column of the text -> the reason in words.
_REASONS: Final = {
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
    """Return a configuration that can be loaded, or only comments.

    It is only comments if nothing can be built.

    Args:
        source: Source, as the user named it.
        groups: Groups of the source's files.
        findings: Remarks on the files.
        tokenizer: Value of `default_tokenizer`; None leaves a line to fill in.
        seq_length: Number of tokens of a packed row.
        looked: Sentence about the files that were read.
    """
    # 1. The head: the command, the files that were read, and all remarks.
    groups = _of_one_dataset(list(groups))
    lines = _comment(f"Proposed by `tokenlake inspect {' '.join(source)}`. {looked}")
    lines += _findings_list(findings)
    lines.append("")

    # 2. Groups without an entry are comments.
    runnable: list[Group] = []
    for group in groups:
        if group.entry is None:
            lines += _left_out(group)
        else:
            runnable.append(group)
    if not runnable:
        lines.append("# No configuration is proposed: a build could not run.")
        return _text(lines)

    # 3. The entries, and the sections that all of them share.
    lines.append("datasets:")
    for group in runnable:
        lines += _dataset(group)
    lines.append("")
    kinds: set[str] = set()
    has_masks = False
    has_split = False
    for group in runnable:
        kinds.add(group.kind)
        has_masks = has_masks or _sort(group) == "chat"
        has_split = has_split or "split" in (group.entry or {})
    lines += _tokenizer_lines(tokenizer, is_chat="chat" in kinds)
    lines.append("")
    if "preference" in kinds:
        lines += _comment(_PAIRS)
    else:
        lines += _packing_lines(seq_length, has_masks=has_masks)
    # Data with splits of its own needs no other ones.
    if not has_split:
        lines.append("")
        lines += _splits(runnable)
    return _text(lines)


def _of_one_dataset(groups: list[Group]) -> list[Group]:
    """Return the groups; those that cannot share a dataset lose their entry.

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
        remark = finding.what
        if finding.file:
            remark = f"{finding.file}: {finding.what}"
        remarks.append(remark)
    if not remarks:
        return []
    lines = ["#"]
    for remark in remarks[:_SHOWN_FINDINGS]:
        lines += _comment(f"- {remark}", hanging="  ")
    hidden_count = len(remarks) - _SHOWN_FINDINGS
    if hidden_count > 0:
        lines.append(f"# - and {hidden_count:,} more")
    return lines


def _left_out(group: Group) -> list[str]:
    """Return comments on a group for which no dataset is proposed."""
    if group.kind == "damaged":
        reason = "None of the sampled files can be read."
    elif group.features:
        reason = _REASONS_LEFT_OUT.get(group.kind, "")
    else:
        reason = "The sampled files contain no record."
    # The columns help the user to name the text, which only a person can know.
    lines = _comment(f"Left out: {_summary(group)}. {reason}")
    if group.features:
        lines += _comment(f"Columns: {_columns(group)}.")
    string_columns: list[str] = []
    for feature in group.features:
        if feature.type == "string":
            string_columns.append(feature.name)
    if group.kind == "unknown" and string_columns:
        column_names = ", ".join(string_columns[:_SHOWN_COLUMNS])
        lines += _comment(
            f"Columns of strings: {column_names}; name the text in `content_field`."
        )
    lines.append("")
    return lines


def _packing_lines(seq_length: int, *, has_masks: bool) -> list[str]:
    """Return the section `pack`.

    Texts with a loss mask stay whole: an answer needs its question.
    """
    options: dict[str, Any] = {"enabled": True, "seq_length": seq_length}
    comment = _PACKED
    if has_masks:
        options["strategy"] = "best_fit"
        comment = _PACKED_CHATS
    return _comment(comment.format(seq_length)) + _yaml({"pack": options})


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
    """Return the lines that divide documents into splits.

    They are comments if the documents are few, or if their number is unknown.
    """
    splits = _yaml({"source": {"splits": _SPLITS}})
    documents = 0
    for group in groups:
        documents += group.rows or 0
    if documents >= _MANY_DOCUMENTS:
        return _comment(_SPLIT) + splits
    lines = _comment(_SPLIT_OF_FEW)
    for line in splits:
        lines.append(f"# {line}")
    return lines


def _sort(group: Group) -> str:
    """Return the sort of dataset of a group: ``text``, ``chat`` or ``preference``.

    All texts with a loss mask are of the sort ``chat``.
    """
    if group.kind == "chat" and group.mapping.get("text") is None:
        return "chat"
    composed = _COMPOSITIONS.keys() & (group.entry or {}).keys()
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
        """Represent a text; one of several lines as a block.

        A template of a prompt is one line with escapes otherwise, which nobody can
        edit.
        """
        style = None
        if "\n" in data:
            style = "|"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _yaml(value: object) -> list[str]:
    """Return a value as lines of YAML, unwrapped, with keys in their order."""
    options: Any = {"sort_keys": False, "allow_unicode": True, "width": 1 << 30}
    return yaml.dump(value, Dumper=_Dumper, **options).splitlines()


def _dataset(group: Group) -> list[str]:
    """Return a group as an entry of `datasets`, after comments with the reasons."""
    # Comments above the entry: its files, columns, text and options.
    entry = dict(group.entry or {})
    remarks = [f"{_summary(group)}."]
    if group.has_columns:
        remarks.append(f"Columns: {_columns(group)}.")
    content_field = entry.get("content_field")
    if content_field is not None:
        remarks.append(f"{content_field}: {_content_reason(group)}.")
    for option in entry:
        if option in _COMPOSITIONS:
            remarks.append(_COMPOSITIONS[option])
    if group.formats.keys() & {"text", "text.gz", "text.zst"}:
        remarks.append(_TEXT_MODES[str(entry.get("text_mode") or "document")])

    # Bad records, and the options that keep them from ending the build.
    body = _yaml([entry])
    if group.bad:
        remarks.append(_remark_on_bad_records(group))
        body.append("  # on_bad_record: quarantine")
        if _bad_share(group) > _DEFAULT_BAD_FRACTION:
            body.append(f"  # max_bad_fraction: {_sufficient_fraction(group):g}")
    elif not group.judged and _sort(group) != "text":
        remarks.append(_NOT_RENDERED)

    lines: list[str] = []
    for remark in remarks:
        lines += _comment(remark, "  ")
    for line in body:
        lines.append(f"  {line}")
    return lines


def _remark_on_bad_records(group: Group) -> str:
    """Return the bad records of the sample, and the options that set them aside."""
    remark = f"{group.bad_in_words}. A build ends at one of them, unless on_bad_record is quarantine"
    if _bad_share(group) > _DEFAULT_BAD_FRACTION:
        fraction = _sufficient_fraction(group)
        remark += (
            f"; their share, {numbers.percent(_bad_share(group), 1.0)}, is above the default max_bad_fraction "
            f"({_DEFAULT_BAD_FRACTION:g}), and {fraction:g} allows it"
        )
    remark += "."
    if not group.judged and _sort(group) != "text":
        remark += f" {_NOT_RENDERED}"
    return remark


def _bad_share(group: Group) -> float:
    """Return the share of bad records in the sample."""
    return sum(group.bad.values()) / max(group.sampled, 1)


def _sufficient_fraction(group: Group) -> float:
    """Return a value of max_bad_fraction that allows the bad records of a group."""
    has_all_records = group.rows_exact and group.rows == group.sampled
    return sufficient_fraction(
        sum(group.bad.values()),
        group.sampled,
        is_complete=has_all_records and group.judged,
    )


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
        reason = _REASONS[column.how].format(score=column.score)
    if group.kind != "text":
        reason += f"; it is used unchanged, although the columns are those of {NAMES[group.kind]}"
    return reason


def _summary(group: Group) -> str:
    """Return the name, kind, files and size of a group."""
    formats: list[str] = []
    for form, files in group.formats.items():
        formats.append(f"{form} {numbers.count(files)}")
    file_count = f"{numbers.plural(group.files, 'file')} ({', '.join(formats)})"
    stored = numbers.size(group.bytes)
    summary = f"{group.name}: {NAMES[group.kind]}, {file_count}, {stored} stored"
    if group.rows is not None:
        summary += f", {group.records_in_words}"
    return summary


def _columns(group: Group) -> str:
    """Return the first columns of a group and their types."""
    shown_features = group.features[:_SHOWN_COLUMNS]
    columns = [f"{feature.name} ({feature.type})" for feature in shown_features]
    hidden_count = len(group.features) - len(columns)
    if hidden_count:
        columns.append(f"{hidden_count} more")
    return ", ".join(columns) or "none"


def _comment(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Return a text as lines of a comment.

    Line ends and invisible characters of foreign names are escaped: a name could end
    the comment, and continue as an option.

    Args:
        text: Text of the comment.
        indent: Blanks before each line.
        hanging: Blanks before the text of each line after the first.
    """
    plain_text = ""
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        plain_text += character
    return textwrap.wrap(
        plain_text,
        _COMMENT_WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {hanging}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def entry_of(
    name: str, files: str | list[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a configuration's dataset in the order of reading."""
    order = (
        "type",
        "subset",
        "split",
        "delimiter",
        "content_field",
        "text_mode",
        *_COMPOSITIONS,
        "storage_options",
    )
    entry: dict[str, Any] = {"name": name, "data_files": files}
    for option in order:
        if options.get(option) is not None:
            entry[option] = options[option]
    return entry
