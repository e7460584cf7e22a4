"""A configuration that builds from what was found, as YAML with the reasons in comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, final

import yaml

from tokenlake import numbers
from tokenlake.introspection.inspection import NAMES, Group, Remark

_WIDTH: Final = 77  # fits a terminal of 80 with an indent
_SHOWN: Final = 10
SEQ_LENGTH: Final = 2048

_NOT_YET: Final = {
    **dict.fromkeys(
        ("text", "chat", "instruction", "preference"),
        "They belong in a dataset of their own: inspect these files alone.",
    ),
    "unknown": "No column is plainly the text.",
}
_MADE: Final = {
    "chat": "Conversations, rendered by the tokenizer's chat template; the loss covers what the assistant says.",
    "prompt": "A template makes one text of the columns; the loss covers the label. Adapt the template to your model.",
    "preference": "Set the method to one of dpo, orpo, cpo, reward, kto, bco and grpo.",
}
_PAIRS: Final = "Preferences are not packed: a row of the result is a row of the input."
_TEXT_MODES: Final = {
    "document": "A file is one document; with `text_mode: lines` every line is one.",
    "lines": "Every line is a document; with `text_mode: document` a whole file is one.",
}
_HOW: Final = {
    "explicit": "as you said",
    "exact": "the name says so",
    "synonym": "a usual name for the text",
    "fuzzy": "its name is like {score:.0%} of a usual one: check it",
    "type": "its texts are by far the longest: check it",
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
    groups = _of_one_sort(list(groups))
    runnable = [group for group in groups if group.entry is not None]
    lines = [
        *_comment(f"Proposed by `tokenlake inspect {' '.join(source)}`. {looked}"),
        *_findings(findings),
        "",
    ]
    for group in groups:
        if group.entry is None:
            lines += [*_comment(f"Left out: {_what(group)}. {_why(group)}"), *_candidates(group), ""]
    if not runnable:
        return _text([*lines, "# No configuration is proposed: a build could not run."])
    lines += ["datasets:", *(line for group in runnable for line in _dataset(group)), ""]
    paired = any(group.kind == "preference" for group in runnable)
    spoken = any(group.kind == "chat" for group in runnable)
    return _text(
        [*lines, *_tokenizer(tokenizer, spoken), "", *(_comment(_PAIRS) if paired else _pack(seq_length))]
    )


def _of_one_sort(groups: list[Group]) -> list[Group]:
    """Leave out what does not belong into one dataset with the first: raw text, what is learned in parts, pairs."""
    first = next((_sort(group) for group in groups if group.entry is not None), None)
    return [group if _sort(group) == first else replace(group, entry=None) for group in groups]


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
        told.append(f"{column}: {_reason(group)}.")
    told += [_MADE[name] for name in entry if name in _MADE]
    if group.formats.keys() & {"text", "text.gz", "text.zst"}:
        told.append(_TEXT_MODES[str(entry.get("text_mode") or "document")])
    last = ["# on_bad_record: quarantine"] if group.bad else []
    if group.bad:
        told.append(_bad(group))
    body = [*_yaml([entry]), *(f"  {line}" for line in last)]
    return [*(line for each in told for line in _comment(each, "  ")), *(f"  {line}" for line in body)]


def _what(group: Group) -> str:
    kinds = ", ".join(f"{name} {numbers.count(count)}" for name, count in group.formats.items())
    rows = "" if group.rows is None else f", {'' if group.rows_exact else 'about '}{_rows(group)}"
    size = numbers.size(group.bytes)
    return f"{group.name}: {NAMES[group.kind]}, {numbers.plural(group.files, 'file')} ({kinds}), {size}{rows}"


def _rows(group: Group) -> str:
    count = group.rows or 0
    return numbers.plural(count, "record") if group.rows_exact else f"{numbers.short(count)} records"


def _columns(group: Group) -> str:
    shown = [f"{feature.name} ({feature.type})" for feature in group.features[:_SHOWN]]
    more = len(group.features) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])]) or "none"


def _reason(group: Group) -> str:
    if group.kind == "chat" and group.mapping.get("text") is None:
        return "conversations, rendered by the tokenizer's chat template; the loss covers what the assistant says"
    found = group.mapping.get("text")
    told = "" if found is None else _HOW[found.how].format(score=found.score)
    if group.kind != "text":
        told += f"; it is taken as it stands, though the columns are those of {NAMES[group.kind]}"
    return told


def _why(group: Group) -> str:
    if group.kind == "damaged":
        return "None of the sampled files can be read."
    if not group.features:
        return "The sampled files hold no record."
    return _NOT_YET.get(group.kind, "")


def _candidates(group: Group) -> list[str]:
    """For files without a text, the columns that might be it."""
    texts = [feature.name for feature in group.features if feature.type == "string"]
    lines = _comment(f"Columns: {_columns(group)}.") if group.features else []
    if group.kind == "unknown" and texts:
        return lines + _comment(
            f"Columns of strings: {', '.join(texts[:_SHOWN])}; name the text in `content_field`."
        )
    return lines


def _bad(group: Group) -> str:
    told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(group.bad.items()))
    return (
        f"{sum(group.bad.values()):,} of {group.sampled:,} sampled records are bad ({told}); a build fails at the "
        "first one, unless on_bad_record is quarantine."
    )


def _findings(findings: Iterable[Remark]) -> list[str]:
    found = [f"{finding.file}: {finding.what}" if finding.file else finding.what for finding in findings]
    lines = [line for each in found[: 2 * _SHOWN] for line in _comment(f"- {each}", hanging="  ")]
    more = len(found) - 2 * _SHOWN
    return ["#", *lines, *([f"# - and {more:,} more"] if more > 0 else [])] if found else []


def _tokenizer(name: str | None, spoken: bool) -> list[str]:
    if name is not None:
        return _yaml({"default_tokenizer": name})
    if spoken:
        told, example = (
            "Missing: the tokenizer of a chat model, which has a chat template:",
            "meta-llama/Llama-2-7b-chat-hf",
        )
    else:
        told = "Missing: the tokenizer, as a Hub id, a directory or a tokenizer.json file:"
        example = "openai-community/gpt2"
    return [*_comment(told), f"# default_tokenizer: {example}"]


def _pack(seq_length: int) -> list[str]:
    return [
        *_comment(
            f"Documents end to end in rows of {seq_length:,} tokens, none lost. Without packing a row is a "
            "document, cut at tokenize.max_length."
        ),
        "pack:",
        "  enabled: true",
        f"  seq_length: {seq_length}",
    ]


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
