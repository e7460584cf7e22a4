"""A proposed configuration for a source: a `datasets` entry, or a whole YAML file with comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, final

import yaml

from tokenlake.base import numbers
from tokenlake.etl.introspection.inspection import NAMES, Group, Kind, Remark
from tokenlake.etl.introspection.mapping import ColumnMapping

_HEADS: Final = {"system": "System", "instruction": "Instruction", "input": "Input", "output": "Response"}


def text_options(kind: Kind, mapping: ColumnMapping) -> dict[str, Any] | None:
    """Return the options of a dataset of this kind; None where nothing can be proposed."""
    columns = mapping.columns
    if kind == "chat":
        field = columns["messages"]
        usual = field in ("messages", "conversations", "conversation")
        return {"content_field": field} if usual else {"chat": {"messages_field": field}}
    if kind == "instruction":
        roles = [role for role in _HEADS if role in columns]
        template = "\n\n".join(f"### {_HEADS[role]}:\n{{{columns[role]}}}" for role in roles)
        inputs = [columns[role] for role in roles if role != "output"]
        return {"prompt": {"template": template, "input_columns": inputs, "label_column": columns["output"]}}
    if kind == "preference":
        usual = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
        named = {name: columns[role] for name, role in usual.items() if role in columns}
        fields = {f"{name}_field": column for name, column in named.items() if column != name}
        return {"preference": {"method": "dpo", **fields}}
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
_PACKED: Final = (
    "Documents end to end in rows of {:,} tokens, none lost. Without packing a row is a document, cut at "
    "tokenize.max_length."
)
_SPLITS: Final = {"train": 0.99, "validation": 0.01}
_MANY_DOCUMENTS: Final = 1000  # from which on a hundredth of them is worth being a split
_SPLIT: Final = (
    "One document of a hundred is for validation, the same ones in every build: "
    'tl.open("STORE/NAME", split="validation"). Without these lines all are for training.'
)
_SPLIT_OF_FEW: Final = (
    "All documents are for training. These lines would set some of them apart, by their share:"
)
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
    """Return YAML that :func:`tokenlake.load_config` takes, or comments alone where nothing can be built.

    Args:
        source: as it was given.
        tokenizer: for `default_tokenizer`; None leaves a line to fill in.
        seq_length: tokens of a packed row.
        looked: what was looked at, as a sentence.
    """
    groups = list(groups)
    # What does not belong into one dataset with the first is left out: raw text, what is learned in parts, pairs.
    first = next((_sort(group) for group in groups if group.entry is not None), None)
    groups = [group if _sort(group) == first else replace(group, entry=None) for group in groups]
    runnable = [group for group in groups if group.entry is not None]
    lines = _comment(f"Proposed by `tokenlake inspect {' '.join(source)}`. {looked}")
    if told := [f"{each.file}: {each.what}" if each.file else each.what for each in findings]:
        more = len(told) - 2 * _SHOWN
        lines += ["#", *(line for each in told[: 2 * _SHOWN] for line in _comment(f"- {each}", hanging="  "))]
        lines += [f"# - and {more:,} more"] if more > 0 else []
    lines.append("")
    for group in (group for group in groups if group.entry is None):
        if group.kind == "damaged":
            why = "None of the sampled files can be read."
        else:
            why = _NOT_YET.get(group.kind, "") if group.features else "The sampled files contain no record."
        lines += _comment(f"Left out: {_what(group)}. {why}")
        lines += _comment(f"Columns: {_columns(group)}.") if group.features else []
        texts = ", ".join([each.name for each in group.features if each.type == "string"][:_SHOWN])
        if group.kind == "unknown" and texts:
            lines += _comment(f"Columns of strings: {texts}; name the text in `content_field`.")
        lines.append("")
    if not runnable:
        return _text([*lines, "# No configuration is proposed: a build could not run."])
    lines += ["datasets:", *(line for group in runnable for line in _dataset(group)), ""]
    kinds = {group.kind for group in runnable}
    if tokenizer is not None:
        lines += _yaml({"default_tokenizer": tokenizer})
    elif "chat" in kinds:
        lines += _comment("Missing: the tokenizer of a chat model, which has a chat template:")
        lines.append("# default_tokenizer: meta-llama/Llama-2-7b-chat-hf")
    else:
        lines += _comment("Missing: the tokenizer, as a Hub id, a directory or a tokenizer.json file:")
        lines.append("# default_tokenizer: openai-community/gpt2")
    if "preference" in kinds:
        lines += ["", *_comment(_PAIRS)]
    else:
        pack = _yaml({"pack": {"enabled": True, "seq_length": seq_length}})
        lines += ["", *_comment(_PACKED.format(seq_length)), *pack]
    if not any("split" in (group.entry or {}) for group in runnable):
        lines += ["", *_splits(runnable)]
    return _text(lines)


def _splits(groups: Iterable[Group]) -> list[str]:
    """Return the lines that divide documents into splits; a comment, if they are few or nobody knows their number."""
    splits = _yaml({"source": {"splits": _SPLITS}})
    documents = sum(group.rows or 0 for group in groups)
    if documents >= _MANY_DOCUMENTS:
        return [*_comment(_SPLIT), *splits]
    return [*_comment(_SPLIT_OF_FEW), *(f"# {line}" for line in splits)]


def _sort(group: Group) -> str:
    if group.kind == "chat" and group.mapping.get("text") is None:
        return "chat"
    made = _MADE.keys() & (group.entry or {}).keys()
    return "text" if not made else "preference" if "preference" in made else "chat"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


@final
class _Dumper(yaml.SafeDumper):
    """YAML with texts of several lines as blocks."""

    def represent_text(self, data: str) -> yaml.ScalarNode:
        """Represent a text, as a block where it reads well as one."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def _yaml(value: object) -> list[str]:
    """Return a value as lines of YAML."""
    options: Any = {"sort_keys": False, "allow_unicode": True, "width": 1 << 30}
    return yaml.dump(value, Dumper=_Dumper, **options).splitlines()


def _dataset(group: Group) -> list[str]:
    """A group of files as an entry of `datasets`, with the reasons before it."""
    entry = dict(group.entry or {})
    told = [_what(group) + "."]
    if group.has_columns:
        told.append(f"Columns: {_columns(group)}.")
    if (column := entry.get("content_field")) is not None:
        found = group.mapping.get("text")
        reason = "" if found is None else _HOW[found.how].format(score=found.score)
        if group.kind == "chat" and found is None:
            reason = (
                "conversations, rendered by the tokenizer's chat template; only the assistant's turns count toward "
                "the loss"
            )
        elif group.kind != "text":
            reason += f"; it is used unchanged, although the columns are those of {NAMES[group.kind]}"
        told.append(f"{column}: {reason}.")
    told += [_MADE[name] for name in entry if name in _MADE]
    if group.formats.keys() & {"text", "text.gz", "text.zst"}:
        told.append(_TEXT_MODES[str(entry.get("text_mode") or "document")])
    body = _yaml([entry])
    if group.bad:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(group.bad.items()))
        told.append(
            f"{sum(group.bad.values()):,} of {group.sampled:,} sampled records are bad ({reasons}); a build fails at "
            "the first one, unless on_bad_record is quarantine."
        )
        body.append("  # on_bad_record: quarantine")
    return [*(line for each in told for line in _comment(each, "  ")), *(f"  {line}" for line in body)]


def _what(group: Group) -> str:
    kinds = ", ".join(f"{name} {numbers.count(count)}" for name, count in group.formats.items())
    rows = "" if group.rows is None else f", {group.records_in_words}"
    size = numbers.size(group.bytes)
    return f"{group.name}: {NAMES[group.kind]}, {numbers.plural(group.files, 'file')} ({kinds}), {size}{rows}"


def _columns(group: Group) -> str:
    shown = [f"{feature.name} ({feature.type})" for feature in group.features[:_SHOWN]]
    more = len(group.features) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])]) or "none"


def _comment(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Return a comment; what foreign names hold cannot end it or hide in it."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return textwrap.wrap(
        plain,
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {hanging}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def entry_of(name: str, files: str | list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a configuration's dataset in the order in which people read them."""
    order = ("type", "subset", "split", "delimiter", "content_field", "text_mode", *_MADE, "storage_options")
    known = {option: options[option] for option in order if options.get(option) is not None}
    return {"name": name, "data_files": files, **known}
