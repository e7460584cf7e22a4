"""Which files of an entry of `data_files` are read: those of one subset and one split.

========== ============================== ==========================================================================
entry      `split`                        files that are read
========== ============================== ==========================================================================
folder     not written                    those of the split train; refused where names say splits and no train, and
                                          where some names say a split and others say none
folder     written                        those of that split; refused where there is none
file, glob not written                    all: who names files has chosen them
file, glob written                        those whose names say that split; a name without a split is of train
any        key of a mapping `data_files`  all that is named under it; of a folder with splits, those of that split
========== ============================== ==========================================================================

Names are read as :mod:`tokenlake.etl.sources.layout` says. A folder of this machine, of a bucket and of a
repository on the Hub are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import ConfigError
from tokenlake.etl.sources import card_layout, layout, saved_layout, split_names
from tokenlake.etl.sources.layout import CARD, TRAIN, Splits
from tokenlake.etl.sources.saved_layout import ReadText

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_SHOWN: Final = 3  # names of files in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesEntry:
    """What one entry of `data_files` stands for.

    Attributes:
        written: the entry as it was written, for messages; it holds no credentials.
        base: what stands before a path in the absolute path or URL of its file.
        folder_name: name of the folder that all paths are in.
        paths: files, relative to that folder.
        is_folder: whether the entry names the folder itself, not files by name or glob.
        names: of what lies directly in the folder; empty unless the entry is a folder.
        read: returns the text of a small file of the folder.
    """

    written: str
    base: str
    folder_name: str
    paths: Sequence[str]
    is_folder: bool
    names: Collection[str]
    read: ReadText


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySplits:
    """The splits of an entry.

    Attributes:
        splits: split to paths.
        unnamed: paths in no split.
        origin: what says so, as in :class:`tokenlake.etl.sources.layout.FolderLayout`; ``none`` where no
            name says a split, ``saved dataset`` for a folder that ``Dataset.save_to_disk`` wrote.
        subset: the subset that the splits are of; None where there are no subsets.
        subsets: names of all subsets.
    """

    splits: Splits
    unnamed: Sequence[str]
    origin: str
    subset: str | None = None
    subsets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Files of an entry.

    Attributes:
        paths: the files to read.
        note: what was chosen and what is left out, "" where nothing is.
        refusal: why nothing is read of files that were named; it is raised where nothing of any entry is.
    """

    paths: Sequence[str]
    note: str = ""
    refusal: ConfigError | None = None


def notes_of(choices: Iterable[Choice]) -> str:
    """Return the notes on all entries of a source; ConfigError where nothing of any entry is read."""
    every = list(choices)
    refusals = [choice.refusal for choice in every if choice.refusal is not None]
    if refusals and not any(choice.paths for choice in every):
        raise refusals[0]
    return "; ".join(choice.note for choice in every if choice.note)


def splits_of(entry: FilesEntry, subset: str | None, *, takes_first: bool = False) -> EntrySplits:
    """Return the splits of an entry: by its card, as a saved dataset, or by its names.

    Args:
        subset: the subset that is asked for, None for the default one.
        takes_first: where no subset is the default one, take the first one instead of raising.

    Raises:
        ConfigError: there is no such subset, or the card is of no use.
    """
    found = _layout_of(entry)
    if found is None:
        if subset is not None:
            raise _no_subsets(entry, subset)
        if saved_layout.is_saved(entry.names):
            split = saved_layout.saved_split(entry.read(saved_layout.STATE), saved_layout.STATE) or TRAIN
            return EntrySplits(splits={split: entry.paths}, unnamed=(), origin="saved dataset")
        splits = split_names.splits_named(entry.paths, only_known_shards=True)
        if not splits:
            return EntrySplits(splits={TRAIN: entry.paths}, unnamed=(), origin="none")
        unnamed = tuple(layout.in_no_split(entry.paths, splits))
        return EntrySplits(splits=splits, unnamed=unnamed, origin="names")

    subsets = tuple(found.subsets)
    name = found.default if subset is None else subset
    if name is None and takes_first:
        name = subsets[0]
    if found.origin != "card" and subset is not None:
        raise _no_subsets(entry, subset)
    if name is None or name not in found.subsets:
        what = "has several subsets and no default one" if subset is None else f"has no subset {subset!r}"
        hint = "" if subset is None else did_you_mean(subset, subsets)
        raise ConfigError(
            f"data_files: {entry.written!r} {what}; by its {CARD} it has {', '.join(subsets)}: set `subset` to one of "
            f"them{hint}",
            got=subset,
            subsets=list(subsets),
        )
    splits = found.subsets[name]
    unnamed = tuple(layout.in_no_split(entry.paths, splits))
    is_card = found.origin == "card"
    return EntrySplits(
        splits=splits,
        unnamed=unnamed,
        origin=found.origin,
        subset=name if is_card else None,
        subsets=subsets if is_card else (),
    )


Select: TypeAlias = Callable[[FilesEntry, "ResolvedSource"], Choice]
"""What says which files of an entry are listed."""


@final
class Survey:
    """Lists all files of a source, and notes the splits and subsets that they have.

    Attributes:
        splits: split to absolute paths or URLs; only splits that names or descriptions say.
        unnamed: files in no split, where other files of their entry are in one.
        subsets: names of all subsets.
        subset: the subset that the splits are of: the one asked for, the default one, else the first.
        has_folder: whether an entry is a folder.
    """

    def __init__(self) -> None:
        self.splits: dict[str, list[str]] = {}
        self.unnamed: list[str] = []
        self.subsets: tuple[str, ...] = ()
        self.subset: str | None = None
        self.has_folder = False

    def __call__(self, entry: FilesEntry, source: ResolvedSource) -> Choice:
        """Note the splits of an entry; return all its files."""
        self.has_folder = self.has_folder or entry.is_folder
        found = splits_of(entry, source.subset, takes_first=True)
        if found.subset is not None:
            self.subsets = tuple(found.subsets)
            self.subset = found.subset
        if found.origin not in ("none", "saved dataset"):
            for split, paths in found.splits.items():
                self.splits.setdefault(split, []).extend(entry.base + path for path in paths)
            self.unnamed += [entry.base + path for path in found.unnamed]
        return Choice(paths=entry.paths)


def every_file(entry: FilesEntry, source: ResolvedSource) -> Choice:
    """Return all files of an entry, of whatever split, unless the source names a split or subset."""
    if source.split_from == "default" and source.subset is None:
        return Choice(paths=entry.paths)
    return choose(entry, source)


def choose(entry: FilesEntry, source: ResolvedSource) -> Choice:
    """Return the files of an entry that a source reads.

    Raises:
        ConfigError: the entry has no such subset or split, or its names do not say which files are meant.
    """
    split = source.split
    is_written = source.split_from == "option"
    if not entry.is_folder and not is_written:
        if source.subset is not None:
            raise _no_subsets(entry, source.subset)
        named = split_names.splits_named(entry.paths, only_known_shards=True)
        if len(named) > 1 and source.split_from == "default":
            told = f"all its files are read, of whatever split: {counted(named)}; `split: {split}` reads those of one"
            return Choice(paths=entry.paths, note=f"{entry.written}: {told}")
        return Choice(paths=entry.paths)
    found = splits_of(entry, source.subset)
    if found.origin == "saved dataset" and not is_written:
        return Choice(paths=entry.paths)  # a folder of one dataset, whatever split it was taken from
    if split not in found.splits and split_names.split_of_word(split) in found.splits:
        split = split_names.split_of_word(split)

    # 1. No name says a split: all files are train, unless the folder itself is named after the split.
    if found.origin == "none":
        is_of_folder = split_names.is_name_of(split, entry.folder_name)
        others = split_names.paths_of_word(entry.paths, split)
        if source.split_from == "mapping" or split == TRAIN or is_of_folder:
            return Choice(paths=entry.paths)
        if others:
            return Choice(paths=others, note=_note(entry, split, others, found))
        refusal = _nothing_says(entry, split)
        if entry.is_folder:
            raise refusal
        return Choice(paths=(), note=_note(entry, split, (), found), refusal=refusal)

    # 2. A file whose name says two splits belongs to neither for certain.
    if found.origin == "names":
        _refuse_ambiguous(entry, found.splits)

    # 3. The files of the split. Files that were named, and whose names say no split, are of train.
    paths = list(found.splits.get(split, ()))
    if not entry.is_folder and split == TRAIN:
        paths += found.unnamed
    if not paths and found.origin == "names" and is_written:
        paths = split_names.paths_of_word(found.unnamed, split)
    if not paths:
        refusal = _no_split(entry, split, found)
        if entry.is_folder:
            raise refusal
        return Choice(paths=(), note=_note(entry, split, (), found), refusal=refusal)
    if entry.is_folder and not is_written and found.origin == "names" and found.unnamed:
        raise _partly_named(entry, split, found)
    return Choice(paths=paths, note=_note(entry, split, paths, found))


def _layout_of(entry: FilesEntry) -> layout.FolderLayout | None:
    """Return the layout that a file of the folder describes; None where only names can say it."""
    if not entry.is_folder:
        return None
    if CARD in entry.names:
        pattern = f"{entry.written.rstrip('/')}/PATTERN"
        configs = card_layout.card_configs(entry.read(CARD), entry.written, pattern)
        if configs:
            return card_layout.layout_by_card(configs, entry.paths, entry.written, pattern)
    return saved_layout.saved_layout(entry.paths, entry.names, entry.read)


def counted(splits: Mapping[str, Sequence[str]]) -> str:
    """Return splits for a message: ``train (3 files), test (1 file)``."""
    return ", ".join(f"{split} ({files_of(len(paths))})" for split, paths in splits.items())


def left_over(splits: Splits, unnamed: Iterable[str], chosen: Collection[str]) -> str:
    """Return for a message which files are not chosen: ``test (1 file), 2 files in no split``; "" for none."""
    parts: list[str] = []
    for split, paths in splits.items():
        rest = [path for path in paths if path not in chosen]
        if rest:
            parts.append(f"{split} ({files_of(len(rest))})")
    count = sum(path not in chosen for path in unnamed)
    if count:
        parts.append(f"{files_of(count)} in no split")
    return ", ".join(parts)


def files_of(count: int) -> str:
    """Return ``1 file`` or ``3 files``."""
    return f"{count} file" if count == 1 else f"{count} files"


def _listed(paths: Iterable[str]) -> str:
    every = list(paths)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _note(entry: FilesEntry, split: str, paths: Sequence[str], found: EntrySplits) -> str:
    """Return what is read of an entry, and what is left out."""
    rest = left_over(found.splits, found.unnamed, set(paths))
    if not rest and len(found.subsets) < 2:
        return ""
    subset = "" if found.subset is None else f"subset {found.subset!r}, "
    told = f"{entry.written}: {subset}split {split!r}, {files_of(len(paths))}"
    return f"{told}; not read: {rest}" if rest else told


def _no_subsets(entry: FilesEntry, subset: str) -> ConfigError:
    if not entry.is_folder:
        told = "files that are named one by one or by a glob have no subsets"
        remedy = "leave `subset` out, or name the folder whose README.md describes it"
    else:
        told = f"{entry.written!r} has no {CARD} whose `configs:` names subsets"
        remedy = "leave `subset` out"
        if any(path.startswith(f"{subset}/") for path in entry.paths):
            remedy = (
                f"name the folder in data_files, {entry.written.rstrip('/')}/{subset}, and leave `subset` out"
            )
    return ConfigError(f"data_files: {told}; got subset {subset!r}: {remedy}", got=subset)


def _nothing_says(entry: FilesEntry, split: str) -> ConfigError:
    return ConfigError(
        f"data_files: no name in {entry.written!r} says a split, so that all its files are the split {TRAIN!r}; got "
        f"split {split!r}. Leave `split` out to read them, name the files of each split, as data_files: "
        f"{{train: PATTERN, {split}: PATTERN}}, or divide documents at random by `splits: {{train: 0.9, "
        f"validation: 0.1}}`",
        got=split,
        splits=[TRAIN],
    )


def _no_split(entry: FilesEntry, split: str, found: EntrySplits) -> ConfigError:
    said_by = {"card": f"by its {CARD}", "names": "by the names of its files"}.get(
        found.origin, "as it was saved"
    )
    names = list(found.splits)
    if found.splits.get(split) is not None:
        told = f"has no file of split {split!r} that is read here, though its {CARD} names it"
    else:
        told = f"has no split {split!r}{did_you_mean(split, names)}"
    unnamed = (
        f"; {files_of(len(found.unnamed))} in no split ({_listed(found.unnamed)})" if found.unnamed else ""
    )
    if entry.is_folder:
        all_of_them = f"{entry.written.rstrip('/')}/**/*.EXTENSION"
        remedy = f"To read files whatever their names, write a glob: data_files: {all_of_them}"
    else:
        remedy = "To read files whatever their names, leave `split` out"
    return ConfigError(
        f"data_files: {entry.written!r} {told}; {said_by} it has {counted(found.splits)}{unnamed}. Set `split` to one "
        f"of {', '.join(names)}. {remedy}",
        got=split,
        splits=names,
    )


def _partly_named(entry: FilesEntry, split: str, found: EntrySplits) -> ConfigError:
    return ConfigError(
        f"data_files: in {entry.written!r} some names say a split ({counted(found.splits)}), and "
        f"{files_of(len(found.unnamed))} in no split ({_listed(found.unnamed)}), so that it is not clear what to read. "
        f"Write `split: {split}` to read the files of that name alone, name the files of each split, as data_files: "
        f"{{train: PATTERN, test: PATTERN}}, or read files whatever their names by a glob: "
        f"{entry.written.rstrip('/')}/**/*.EXTENSION",
        splits=list(found.splits),
    )


def _refuse_ambiguous(entry: FilesEntry, splits: Splits) -> None:
    """Raise ConfigError if the name of a file says two splits."""
    split_of: dict[str, str] = {}
    for split, paths in splits.items():
        for path in paths:
            first = split_of.setdefault(path, split)
            if first != split:
                raise ConfigError(
                    f"data_files: in {entry.written!r} the name {path!r} says two splits, {first} and {split}; name "
                    "the files of each split, as data_files: {train: PATTERN, test: PATTERN}",
                    got=path,
                )
