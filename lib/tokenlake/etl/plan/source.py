"""What only inputs and tokenizer can say of a source: whether its rows are conversations, which template renders them,
whether a prompt fits its columns, and the types of kept fields.

Types of kept fields are decided once, for the whole dataset. Files with a schema say them; of others the first records
are looked at, after the steps of the configuration. Where several types were found the column has the narrowest that
holds them all, and JSON text where none does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final, final

from tokenlake.columns import JSON, NULL, ColumnType
from tokenlake.config.resolved import (
    MESSAGES_FIELDS,
    ResolvedBuild,
    ResolvedChat,
    ResolvedFim,
    ResolvedPack,
    ResolvedPrompt,
    ResolvedSource,
    ResolvedTexts,
)
from tokenlake.config.values import did_you_mean
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.schema import arrow_type, column_type, joined, may_become, settled
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.records import read_rows
from tokenlake.sources.rows import Rows, column_of
from tokenlake.sources.splits import by_file, columns_of_files, first_rows
from tokenlake.text.steps import open_chain
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.tokenizers.fingerprint import describe, special_ids


def _check_prompt(
    source: ResolvedSource,
    prompt: ResolvedPrompt,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None,
) -> None:
    """Require a template that fits its columns, columns that the rows have, and an end of answers.

    Raises:
        ConfigError: one of them is not so.
    """
    from tokenlake.text.prompt_renderer import check_end, open_prompt

    check_end(prompt, tokenizer, eos_id)
    renderer = open_prompt(prompt, tokenizer, source.tokenizer.special_tokens_in_text)
    if source.on_bad_record != "fail":
        return  # rows without a column are set aside, even if they come first
    rows = _stepped(source, first_rows(source, files))
    names = [] if rows is None else _names(rows)  # else the build will say of which record
    for column in getattr(renderer, "needed", ()):
        if names and column not in names and column.partition(".")[0] not in names:
            path = f"prompt.{'label_column' if column == prompt.label_column else 'input_columns'}"
            has = ", ".join(map(repr, names))
            raise ConfigError(
                f"{path}: the first rows have no column {column!r}; they have {has}{did_you_mean(column, names)}",
                field_path=path,
                expected=has,
                got=column,
            )


def _names(rows: Rows) -> list[str]:
    """The fields of rows."""
    if rows.has_objects:
        return list(dict.fromkeys(chain.from_iterable(rows.objects)))
    return rows.columns.schema.names if len(rows) else []


def _stepped(source: ResolvedSource, rows: Rows) -> Rows | None:
    """Return rows as the configured steps leave them; None where one fails, which is not our concern here."""
    try:
        return open_chain(source.texts).on_rows(rows).rows
    except TokenlakeError:
        return None


_FILES: Final = 8  # whose first records are looked at
_RECORDS: Final = 1000  # of each that are looked at: those that `where` leaves out may come first
_SHOWN: Final = 20  # names of fields in a message


def settle(
    source: ResolvedSource,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None = None,
    rows: Rows | None = None,
) -> tuple[ResolvedSource, list[str]]:
    """Return the source with nothing left open, and notes for the plan on what was found.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.
        rows: the first ones, where there are no files to look at.

    Raises:
        ConfigError: what is asked for cannot be had from these inputs or this tokenizer.
    """
    texts, notes = source.texts, list[str]()
    if texts.chat is None and not (texts.prompt or texts.preference):
        field = _found_messages(source, files, rows)
        if field is not None:
            texts = replace(texts, chat=ResolvedChat(messages_field=field))
            notes.append(
                f"{source.name}: rows are conversations (field {field}); rendered by the tokenizer's chat template"
            )
    try:
        if texts.fim is not None and (texts.masked or texts.preference):
            raise ConfigError(
                "fim: only plain texts can be infilled, and these rows are conversations; leave it out, or name the "
                "field of a text: content_field"
            )
        if texts.chat is not None:
            source, more = _settle_chat(replace(source, texts=texts), texts.chat, files, tokenizer, rows)
            notes += [f"{source.name}: {note}" for note in more]
        else:
            source = replace(source, texts=_with_template(texts, tokenizer))
        if source.texts.fim is not None:
            source = replace(source, texts=_with_sentinels(source.texts, source.texts.fim, tokenizer))
        if source.texts.prompt is not None:
            _check_prompt(source, source.texts.prompt, files, tokenizer, eos_id)
        _require_text(source, files)
    except ConfigError as error:
        raise ConfigError(f"datasets.{source.name}: {error}", **error.details) from error
    return replace(source, texts=replace(source.texts, left_open=())), notes


def _settle_chat(
    source: ResolvedSource,
    chat: ResolvedChat,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    rows: Rows | None,
) -> tuple[ResolvedSource, list[str]]:
    """Take the template, find the fields, and make sure that rows can be rendered with them."""
    from tokenlake.text.chat_renderer import ChatRenderer
    from tokenlake.text.chat_template import chosen_template, templates_of

    settings = source.tokenizer
    if "special_tokens_in_text" in source.texts.left_open:
        settings = replace(settings, special_tokens_in_text="fail")
    field = chat.messages_field or _messages_field(_first(source, files, rows))
    chat = replace(
        chat,
        template=chosen_template(chat.template, tokenizer),
        messages_field=field,
        tools_field=_tools_field(source, chat.tools_field, files),
    )
    renderer = ChatRenderer(chat, tokenizer, settings.special_tokens_in_text)
    source = replace(source, tokenizer=settings, texts=replace(source.texts, chat=chat))
    notes: list[str] = []
    if chat.loss == "assistant" and not renderer.template.marked:
        notes.append(
            "the chat template has no generation marks; what the assistant says is found, and verified, by rendering "
            "conversations again with marks in the place of its words"
        )
    others = [name for name, text in templates_of(tokenizer).items() if text != chat.template]
    if others:
        notes.append(
            f"the tokenizer has other chat templates, too: {', '.join(others)} (chat.template names one)"
        )
    return source, notes


def _with_template(texts: ResolvedTexts, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Put the tokenizer's template where prompts and preferences may need it."""
    if texts.prompt is not None and texts.prompt.format_type == "chat":
        from tokenlake.text.chat_template import chosen_template

        template = chosen_template(texts.prompt.chat_template, tokenizer)
        return replace(texts, prompt=replace(texts.prompt, chat_template=template))
    if texts.preference is not None:
        from tokenlake.text.preference import settled_preference

        return replace(texts, preference=settled_preference(texts.preference, tokenizer))
    return texts


_SENTINELS: Final = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"),  # Code Llama
)


def _with_sentinels(texts: ResolvedTexts, fim: ResolvedFim, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Put in the sentinels of fill-in-the-middle; ConfigError where the tokenizer has none."""
    families = (fim.tokens,) if fim.tokens else _SENTINELS
    for names in families:
        if all(tokenizer.token_id(name) is not None for name in names):
            return replace(texts, fim=replace(fim, tokens=names))
    missing = next(name for name in families[0] if tokenizer.token_id(name) is None)
    more = f" and none of {', '.join(names[0] for names in families[1:])}"
    more = did_you_mean(missing, tokenizer.special_tokens) if fim.tokens else more
    raise ConfigError(
        f"fim.tokens: tokenizer {tokenizer.name!r} has no token {missing!r}{more}; expected the names of its sentinels "
        "of prefix, suffix and middle. Add such tokens to its tokenizer.json, or name those that it has",
        tokenizer=tokenizer.name,
    )


def _found_messages(source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None) -> str | None:
    """Return the field of conversations where nobody said what the text is, and the rows have none."""
    if "content_field" not in source.texts.left_open:
        return None
    fields = MESSAGES_FIELDS if rows is None else (source.content_field, *MESSAGES_FIELDS)
    if rows is None:
        if not any(file.facts.nested for file in files):
            return None
        columns = [] if source.texts.rows_change else columns_of_files(source, files[:1])
        if columns and (source.content_field in columns[0] or columns[0].isdisjoint(MESSAGES_FIELDS)):
            return None
    first = _first(source, files, rows)
    if not len(first) or any(isinstance(value, str) for value in first.values(source.content_field)):
        return None
    return next((field for field in fields if _holds_turns(first.values(field))), None)


def _first(source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None) -> Rows:
    if rows is not None:
        return rows
    found = first_rows(source, files)
    changed = _stepped(source, found) if source.texts.rows_change else None
    return found if changed is None else changed


def _require_text(source: ResolvedSource, files: Sequence[InputFile]) -> None:
    """Raise ConfigError where the text is a field that none of the first records has."""
    field = source.content_field
    if not source.texts.is_plain:
        return
    seen: dict[str, None] = {}
    for file in files[:_FILES]:
        if file.has_blocks:
            names = sorted(columns_of_files(source, [file])[0])
        else:
            names = _names(first_rows(source, [file], _RECORDS))
        if field in names or field.split(".", 1)[0] in names:
            return
        seen.update(dict.fromkeys(names))
    if seen and all(file.format != "text" for file in files):
        raise ConfigError(
            f"content_field: got {field!r}, but none of the first records has it; their fields are "
            f"{', '.join(islice(seen, _SHOWN))}{did_you_mean(field, seen)}",
            source=source.name,
            field=field,
        )


def _holds_turns(values: Sequence[Any]) -> bool:
    """Whether most of the values are lists; a record may be bad among the first ones, too."""
    given = [isinstance(value, list) for value in values if value is not None]
    return bool(given) and 2 * sum(given) > len(given)


def _messages_field(rows: Rows) -> str:
    for field in MESSAGES_FIELDS:
        if any(value is not None for value in rows.values(field)):
            return field
    names = ", ".join(rows.objects[0]) if len(rows) else "none: there are no rows"
    raise ConfigError(
        f"chat.messages_field: not set, and the first rows have none of {', '.join(MESSAGES_FIELDS)}; their fields "
        f"are {names}. Name the field that holds the conversation"
    )


def _tools_field(source: ResolvedSource, field: str | None, files: Sequence[InputFile]) -> str | None:
    """Return the field of tools, None where no file has it; a column can only be read where it is."""
    columns = [] if source.texts.rows_change or field is None else columns_of_files(source, files)
    if not columns:
        return field
    having = sum(field in names for names in columns)
    if 0 < having < len(columns):
        raise ConfigError(
            f"chat.tools_field: {having} of {len(columns)} files have the column {field!r}, the others lack it; "
            "set it to null to render no tools, or make two datasets of the files"
        )
    return field if having else None


_KEPT_FILES: Final = 16  # in which records with kept fields may lie


def kept_sources(
    sources: Sequence[ResolvedSource], ranges: Sequence[Iterable[Iterable[FileRange]]]
) -> tuple[ResolvedSource, ...]:
    """Return the sources with the types of their kept fields; of one name there is one type in all of them.

    Args:
        ranges: of each source, in groups.

    Raises:
        ConfigError: no record looked at has a field that is to be kept.
        SourceError: an input cannot be read.
    """
    declared = _declared_types(sources)
    types: dict[str, ColumnType] = {}
    for source, groups in zip(sources, ranges, strict=True):
        if source.kept:
            _join_types(types, _types(source, groups, declared))
    types = {name: declared.get(name) or settled(kind) for name, kind in types.items()}
    return tuple(
        replace(source, kept=tuple((name, types[name]) for name, _ in source.kept)) for source in sources
    )


def _declared_types(sources: Sequence[ResolvedSource]) -> dict[str, ColumnType]:
    """Return the types that the configuration declares; ConfigError where two sources declare different ones."""
    declared: dict[str, tuple[str, ColumnType]] = {}
    for source in sources:
        for name, kind in source.field_types:
            other, first = declared.setdefault(name, (source.name, kind))
            if first != kind:
                raise ConfigError(
                    f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(kind)}, and "
                    f"{arrow_type(first)} in datasets.{other}.field_types; of one name there is one column: declare "
                    "the same type, or rename the field in one of them (format_fields)",
                    source=source.name,
                    field=name,
                )
    return {name: kind for name, (_, kind) in declared.items()}


def notes_on_kept(build: ResolvedBuild) -> list[str]:
    """Return a note on every kept field that becomes JSON text."""
    return [
        f"the kept field {name!r} is stored as JSON text: the first records have no one type for it"
        for name, kind in build.kept
        if kind == JSON
    ]


def _types(
    source: ResolvedSource, groups: Iterable[Iterable[FileRange]], declared: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    """Return the types of the kept fields in the first records of a source.

    Raises:
        ConfigError: no record has a field, or columns of a file cannot become the type that is declared for them.
    """
    names = [name for name, _ in source.kept]
    types: dict[str, ColumnType] = {}
    seen: dict[str, None] = {}
    # The values of all records together have a type that does not depend on where units and blocks begin.
    values: dict[str, list[Any]] = {}
    for rows in _first_rows(source, list(islice(by_file(groups), _KEPT_FILES))):
        seen.update(dict.fromkeys(_names(rows)))
        if rows.has_objects:
            for name in names:
                values.setdefault(name, []).extend(row[name] for row in rows.objects if name in row)
            continue
        schema = rows.columns.schema
        stated = {name: column_type(schema.field(name).type) for name in names if name in schema.names}
        _check_declared(source, stated, declared)
        _join_types(types, stated)
    _join_types(types, {name: type_of(some) for name, some in values.items() if some})
    missing = [name for name, _ in source.kept if name not in types]
    if missing:
        there = ", ".join(islice(seen, _SHOWN)) or "no fields"
        raise ConfigError(
            f"datasets.{source.name}.additional_fields: none of the first records has a field {missing[0]!r}; "
            f"they have {there}. Correct the name, or leave it out",
            source=source.name,
            field=missing[0],
        )
    return types


def _check_declared(
    source: ResolvedSource, types: Mapping[str, ColumnType], declared: Mapping[str, ColumnType]
) -> None:
    """Raise ConfigError where columns of these types cannot become those that are declared."""
    own = dict(source.field_types)
    for name, kind in types.items():
        if name not in declared:
            continue
        wanted = declared[name]
        if may_become(kind, wanted) if name in own else joined(kind, wanted) == wanted:
            continue
        held = "JSON text" if kind == JSON else str(arrow_type(kind))
        raise ConfigError(
            f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(wanted)}, but the files hold "
            f"{held}, which cannot become that; declare another type, or {JSON!r} to store each value as JSON text",
            source=source.name,
            field=name,
        )


def _join_types(types: dict[str, ColumnType], more: Mapping[str, ColumnType]) -> None:
    types.update({name: joined(types.get(name, NULL), kind) for name, kind in more.items()})


def _first_rows(source: ResolvedSource, files: Sequence[Sequence[FileRange]]) -> Iterator[Rows]:
    """Yield the first records of some files, after the source's steps; the same ones however files are cut.

    Args:
        files: the ranges of each file.
    """
    from tokenlake.etl.unit.kept_fields import rows_of

    chain = open_chain(source.texts)
    every = replace(source, where=None, on_bad_record="quarantine")
    left = _RECORDS
    for ranges in files:
        file = ranges[0].file
        # Whether the file itself says what its fields hold.
        stated = not chain.steps and (file.facts.schema or file.format == "text")
        columns = tuple(name for name, _ in source.kept) if stated else None
        for part in ranges[:1] if stated else ranges:
            count = 1 if stated else left
            limited = replace(part, rows=count if part.rows is None else min(count, part.rows))
            for batch in read_rows(limited, every, columns):
                yield chain.on_rows(rows_of(batch.table)).rows
                left -= batch.rows_read
            if left <= 0:
                return


def type_of(values: list[Any]) -> ColumnType:
    """Return the type of some values by the rules of :mod:`tokenlake.sources.rows`."""
    try:
        kind = column_type(column_of(values).type)
    except TypeError:  # a function of a row may make values that JSON does not know
        return JSON
    texts = {type(value) for value in values if value is not None} <= {str}
    return JSON if kind == "large_string" and not texts else kind


@final
@dataclass(frozen=True, slots=True)
class PlannedTokenizer:
    """A tokenizer as the plan found it.

    Attributes:
        files: its bytes; they are copied into the version.
        facts: fingerprint, probe ids, special ids (JSON-able).
        eos_id, pad_id: as resolved for packing.
        append_eos: whether packing adds EOS, which the post-processor does not.
    """

    files: TokenizerFiles
    facts: dict[str, Any]
    eos_id: int
    pad_id: int
    append_eos: bool

    @property
    def digest(self) -> str:
        """One hash over the hashes of its files."""
        return hashlib.sha256(repr(sorted(self.facts["files"].items())).encode()).hexdigest()


def plan_tokenizers(build: ResolvedBuild) -> dict[str, PlannedTokenizer]:
    """Load and describe each source's tokenizer, each distinct one once.

    Raises:
        ConfigError: packed rows would hold ids of different tokenizers.
    """
    loaded: dict[Any, tuple[TokenizerFiles, dict[str, Any]]] = {}
    planned: dict[str, PlannedTokenizer] = {}
    for source in build.sources:
        name = source.tokenizer.name_or_path, source.tokenizer.special_tokens
        if name not in loaded:
            files = load_tokenizer(name[0]).with_special_tokens(dict(name[1]))
            loaded[name] = files, describe(files)
        # The same tokenizer may put EOS itself for one source, and be told not to for another.
        files, facts = loaded[name]
        suffix = facts["suffix"] if source.tokenizer.add_special_tokens else None
        ids = packing_ids(build.pack, files, suffix, f"tokenizer {files.name!r}")
        planned[source.name] = PlannedTokenizer(files, facts, **ids)
    first = build.sources[0]
    for source in build.sources[1:] if build.pack is not None else ():
        ours, theirs = planned[first.name], planned[source.name]
        same_ids = ours.files.json_bytes == theirs.files.json_bytes
        if not same_ids or (ours.eos_id, ours.pad_id) != (theirs.eos_id, theirs.pad_id):
            raise ConfigError(
                f"datasets.{source.name}.tokenizer: {source.tokenizer.name_or_path!r} is another tokenizer than "
                f"{first.tokenizer.name_or_path!r} of datasets.{first.name}; packed rows of one dataset are read as "
                "one stream, in which an id must mean one thing. Use one tokenizer, build a dataset for each, or "
                "write pack.enabled: false, where `file` says which source a row is of",
                source=source.name,
            )
    return planned


def packing_ids(
    pack: ResolvedPack | None, files: TokenizerFiles, suffix: Sequence[int] | None, tokenizer: str
) -> dict[str, Any]:
    """Return eos_id, pad_id and append_eos: of the configuration, else the tokenizer's; without padding it is EOS.

    Args:
        suffix: what the post-processor puts behind a document.
        tokenizer: what messages call it.
    """
    eos, pad = (pack.eos_token_id, pack.pad_token_id) if pack else (None, None)
    ids = special_ids(files, suffix, eos, pad)
    if pack is None:
        return ids
    if eos is None and ids["eos_id"] < 0:
        raise ConfigError(
            f"{tokenizer} names no EOS token and pack.eos_token_id is not set; packing needs one to mark where "
            "documents end: set pack.eos_token_id",
            tokenizer=files.name,
        )
    for name in ("eos", "pad"):
        if not 0 <= ids[f"{name}_id"] < files.vocab_size:
            raise ConfigError(
                f"pack.{name}_token_id is {ids[f'{name}_id']}, but {tokenizer} has ids 0 to {files.vocab_size - 1}",
                tokenizer=files.name,
            )
    return ids


def padded(source: ResolvedSource, planned: PlannedTokenizer) -> ResolvedSource:
    """The source with the side of its padding, which may be the tokenizer's to say."""
    settings = source.tokenizer
    if settings.padding == "none":
        return source
    if planned.pad_id < 0:
        raise ConfigError(
            f"datasets.{source.name}.tokenizer.padding: {settings.padding!r}, but tokenizer {planned.files.name!r} "
            "names neither a padding token nor an EOS token; name one in its tokenizer_config.json, or do not pad",
            tokenizer=planned.files.name,
        )
    own = planned.files.config.get("padding_side")
    side = settings.padding_side or ("left" if own == "left" else "right")
    return replace(source, tokenizer=replace(settings, padding_side=side))


def check_room(source: ResolvedSource, tokenizer: PlannedTokenizer) -> None:
    """A `max_length` that special tokens fill is an error before any work."""
    settings = source.tokenizer
    around = [*(tokenizer.facts["prefix"] or ()), *(tokenizer.facts["suffix"] or ())]
    limited = settings.long_documents != "keep" and settings.add_special_tokens
    if limited and settings.max_length <= len(around):
        raise ConfigError(
            f"datasets.{source.name}: max_length is {settings.max_length}, but tokenizer {tokenizer.files.name!r} puts "
            f"{len(around)} special tokens around every document; expected at least {len(around) + 1}"
        )
