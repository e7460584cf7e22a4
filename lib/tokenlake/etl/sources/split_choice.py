"""Which files of an entry of `data_files` are read, by subset and split.

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

Names are read as :mod:`tokenlake.etl.sources.layout` says. A folder of this machine, of
a bucket and of a repository on the Hub are treated alike.
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
    """One entry of `data_files`, with the files that it stands for.

    Attributes:
        written: Entry as it was written, for messages; it holds no credentials.
        base: Prefix of a path in the absolute path or URL of its file.
        folder_name: Name of the folder that all paths are in.
        paths: Paths of the files, relative to that folder.
        is_folder: Whether the entry names the folder itself, not files by name or glob.
        names: Names directly in the folder; empty unless the entry is a folder.
        read: Function that returns the text of a small file of the folder.
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
        splits: Split to paths.
        unnamed: Paths in no split.
        origin: Source of the splits, as in
            :class:`tokenlake.etl.sources.layout.FolderLayout`; ``none`` if no name says
            a split, ``saved dataset`` for a folder that ``Dataset.save_to_disk`` wrote.
        subset: Subset of the splits; None if there are no subsets.
        subsets: Names of all subsets.
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
        paths: Paths of the files to read.
        note: Note on the files that are read and left out, "" if none is left out.
        refusal: Reason for which none of the named files is read; it is raised if no
            file of any entry is read.
    """

    paths: Sequence[str]
    note: str = ""
    refusal: ConfigError | None = None


def notes_of(choices: Iterable[Choice]) -> str:
    """Return the notes on all entries of a source.

    Raises:
        ConfigError: No file of any entry is read.
    """
    notes: list[str] = []
    first_refusal: ConfigError | None = None
    has_paths = False
    for choice in choices:
        if choice.paths:
            has_paths = True
        if choice.note:
            notes.append(choice.note)
        if first_refusal is None:
            first_refusal = choice.refusal
    # An entry without a file of the split is no error as long as another entry has one.
    if first_refusal is not None and not has_paths:
        raise first_refusal
    return "; ".join(notes)


def splits_of(
    entry: FilesEntry, subset: str | None, *, takes_first: bool = False
) -> EntrySplits:
    """Return the splits of an entry: by its card, as a saved dataset, or by its names.

    Args:
        entry: The entry.
        subset: Name of the subset, None for the default one.
        takes_first: Whether the first subset is taken if none is the default one,
            instead of raising.

    Raises:
        ConfigError: The subset does not exist, or the card cannot be used.
    """
    folder_layout = _layout_of(entry)
    if folder_layout is None:
        if subset is not None:
            raise _no_subsets(entry, subset)
        return _splits_without_description(entry)

    # The subset that is meant.
    subsets = tuple(folder_layout.subsets)
    subset_name = folder_layout.default if subset is None else subset
    if subset_name is None and takes_first:
        subset_name = subsets[0]
    if folder_layout.origin != "card" and subset is not None:
        raise _no_subsets(entry, subset)
    if subset_name is None or subset_name not in folder_layout.subsets:
        problem = "has several subsets and no default one"
        hint = ""
        if subset is not None:
            problem = f"has no subset {subset!r}"
            hint = did_you_mean(subset, subsets)
        raise ConfigError(
            f"data_files: {entry.written!r} {problem}; by its {CARD} it has {', '.join(subsets)}: set `subset` to one "
            f"of them{hint}",
            got=subset,
            subsets=list(subsets),
        )
    # Its splits, and the files that are in none of them.
    splits = folder_layout.subsets[subset_name]
    unnamed = tuple(layout.in_no_split(entry.paths, splits))
    is_card = folder_layout.origin == "card"
    return EntrySplits(
        splits=splits,
        unnamed=unnamed,
        origin=folder_layout.origin,
        subset=subset_name if is_card else None,
        subsets=subsets if is_card else (),
    )


def _splits_without_description(entry: FilesEntry) -> EntrySplits:
    """Return the splits of an entry without a file that describes its layout.

    A saved dataset has one split. In any other folder the names of files tell.
    """
    if saved_layout.is_saved(entry.names):
        state = entry.read(saved_layout.STATE)
        split = saved_layout.saved_split(state, saved_layout.STATE) or TRAIN
        return EntrySplits(
            splits={split: entry.paths}, unnamed=(), origin="saved dataset"
        )
    splits = split_names.splits_named(entry.paths, only_known_shards=True)
    if not splits:
        return EntrySplits(splits={TRAIN: entry.paths}, unnamed=(), origin="none")
    unnamed = tuple(layout.in_no_split(entry.paths, splits))
    return EntrySplits(splits=splits, unnamed=unnamed, origin="names")


Select: TypeAlias = Callable[[FilesEntry, "ResolvedSource"], Choice]
"""Function that chooses the files of an entry that are listed."""


@final
class Survey:
    """Lists all files of a source, and collects the splits and subsets that they have.

    Attributes:
        splits: Split to absolute paths or URLs; only splits that names or descriptions
            say.
        unnamed: Files in no split, if other files of their entry are in one.
        subsets: Names of all subsets.
        subset: Subset of the splits: the source's, otherwise the default one, otherwise
            the first.
        has_folder: Whether an entry is a folder.
    """

    def __init__(self) -> None:
        self.splits: dict[str, list[str]] = {}
        self.unnamed: list[str] = []
        self.subsets: tuple[str, ...] = ()
        self.subset: str | None = None
        self.has_folder = False

    def __call__(self, entry: FilesEntry, source: ResolvedSource) -> Choice:
        """Note the splits of an entry; return all its files."""
        # Only splits that somebody named are of interest: train as the default says
        # nothing.
        self.has_folder = self.has_folder or entry.is_folder
        entry_splits = splits_of(entry, source.subset, takes_first=True)
        if entry_splits.subset is not None:
            self.subsets = tuple(entry_splits.subsets)
            self.subset = entry_splits.subset
        if entry_splits.origin not in ("none", "saved dataset"):
            for split, paths in entry_splits.splits.items():
                urls = [entry.base + path for path in paths]
                self.splits.setdefault(split, []).extend(urls)
            self.unnamed += [entry.base + path for path in entry_splits.unnamed]
        return Choice(paths=entry.paths)


def every_file(entry: FilesEntry, source: ResolvedSource) -> Choice:
    """Return all files of an entry, unless the source names a split or subset."""
    if source.split_from == "default" and source.subset is None:
        return Choice(paths=entry.paths)
    return choose(entry, source)


def choose(entry: FilesEntry, source: ResolvedSource) -> Choice:
    """Return the files of an entry that a source reads.

    Raises:
        ConfigError: The entry has no such subset or split, or its names do not say
            which files are meant.
    """
    split = source.split
    is_written = source.split_from == "option"
    if not entry.is_folder and not is_written:
        return _choose_named_files(entry, source)
    entry_splits = splits_of(entry, source.subset)
    if entry_splits.origin == "saved dataset" and not is_written:
        # A folder of one dataset, whatever split it was taken from.
        return Choice(paths=entry.paths)
    # Usual words name the same split: ``val`` is validation.
    usual_split = split_names.split_of_word(split)
    if split not in entry_splits.splits and usual_split in entry_splits.splits:
        split = usual_split

    # 1. No name says a split.
    if entry_splits.origin == "none":
        return _choose_of_unnamed(entry, source, split, entry_splits)

    # 2. A file whose name says two splits belongs to neither for certain.
    if entry_splits.origin == "names":
        _refuse_ambiguous(entry, entry_splits.splits)

    # 3. The files of the split. Files that were named, and whose names say no split,
    #    are of train.
    paths = list(entry_splits.splits.get(split, ()))
    if not entry.is_folder and split == TRAIN:
        paths += entry_splits.unnamed
    if not paths and entry_splits.origin == "names" and is_written:
        paths = split_names.paths_of_word(entry_splits.unnamed, split)
    if not paths:
        refusal = _no_split(entry, split, entry_splits)
        if entry.is_folder:
            raise refusal
        return Choice(
            paths=(),
            note=_note(entry, source, split, (), entry_splits),
            refusal=refusal,
        )
    # Some names say a split and others none: nobody knows whether the others are train.
    is_default = entry.is_folder and not is_written
    if is_default and entry_splits.origin == "names" and entry_splits.unnamed:
        raise _partly_named(entry, split, entry_splits)
    return Choice(paths=paths, note=_note(entry, source, split, paths, entry_splits))


def _choose_named_files(entry: FilesEntry, source: ResolvedSource) -> Choice:
    """Return all files that were named one by one or by a glob.

    Who names files has chosen them. A note says so where their names say splits.
    """
    if source.subset is not None:
        raise _no_subsets(entry, source.subset)
    named_splits = split_names.splits_named(entry.paths, only_known_shards=True)
    if len(named_splits) > 1 and source.split_from == "default":
        note = (
            f"all its files are read, regardless of their splits: {counted(named_splits)}; "
            f"`split: {source.split}` reads only those of one"
        )
        return Choice(paths=entry.paths, note=f"{entry.written}: {note}")
    return Choice(paths=entry.paths)


def _choose_of_unnamed(
    entry: FilesEntry, source: ResolvedSource, split: str, entry_splits: EntrySplits
) -> Choice:
    """Return the files of an entry in which no name says a split.

    All files are train, unless the folder itself is named after the split.

    Raises:
        ConfigError: A split other than train is wanted of a folder.
    """
    is_of_folder = split_names.is_name_of(split, entry.folder_name)
    if source.split_from == "mapping" or split == TRAIN or is_of_folder:
        return Choice(paths=entry.paths)
    # The split may be named by an unusual word, such as ``holdout``.
    paths = split_names.paths_of_word(entry.paths, split)
    note = _note(entry, source, split, paths, entry_splits)
    if paths:
        return Choice(paths=paths, note=note)
    refusal = _nothing_says(entry, split)
    if entry.is_folder:
        raise refusal
    return Choice(paths=(), note=note, refusal=refusal)


def _layout_of(entry: FilesEntry) -> layout.FolderLayout | None:
    """Return the layout that a file of the folder describes, or None."""
    if not entry.is_folder:
        return None
    # A card says nothing about splits unless it has `configs`.
    if CARD in entry.names:
        pattern = f"{entry.written.rstrip('/')}/PATTERN"
        configs = card_layout.card_configs(entry.read(CARD), entry.written, pattern)
        if configs:
            return card_layout.layout_by_card(
                configs, entry.paths, entry.written, pattern
            )
    return saved_layout.saved_layout(entry.paths, entry.names, entry.read)


def counted(splits: Mapping[str, Sequence[str]]) -> str:
    """Return splits for a message: ``train (3 files), test (1 file)``."""
    descriptions: list[str] = []
    for split, paths in splits.items():
        descriptions.append(f"{split} ({files_of(len(paths))})")
    return ", ".join(descriptions)


def left_over(splits: Splits, unnamed: Iterable[str], chosen: Collection[str]) -> str:
    """Return the files that are not chosen, for a message; "" for none.

    An example is ``test (1 file), 2 files in no split``.

    Args:
        splits: Split to paths.
        unnamed: Paths in no split.
        chosen: Paths that are chosen.
    """
    descriptions: list[str] = []
    for split, paths in splits.items():
        other_paths = [path for path in paths if path not in chosen]
        if other_paths:
            descriptions.append(f"{split} ({files_of(len(other_paths))})")
    unnamed_count = sum(path not in chosen for path in unnamed)
    if unnamed_count:
        descriptions.append(f"{files_of(unnamed_count)} in no split")
    return ", ".join(descriptions)


def files_of(count: int) -> str:
    """Return ``1 file`` or ``3 files``."""
    return f"{count} file" if count == 1 else f"{count} files"


def _listed(paths: Iterable[str]) -> str:
    """Return paths for a message, the first three of them."""
    all_paths = list(paths)
    shown_paths = ", ".join(all_paths[:_SHOWN])
    if len(all_paths) > _SHOWN:
        shown_paths += f" and {len(all_paths) - _SHOWN} more"
    return shown_paths


def _note(
    entry: FilesEntry,
    source: ResolvedSource,
    split: str,
    paths: Sequence[str],
    entry_splits: EntrySplits,
) -> str:
    """Return a note on the files of an entry that are read and left out."""
    # Files that another source of the build reads are not left out.
    read_paths = set(paths)
    for sibling in source.sibling_splits:
        read_paths.update(entry_splits.splits.get(sibling, ()))
        read_paths.update(split_names.paths_of_word(entry_splits.unnamed, sibling))
    other_files = left_over(entry_splits.splits, entry_splits.unnamed, read_paths)
    if not other_files and len(entry_splits.subsets) < 2:
        return ""
    subset = "" if entry_splits.subset is None else f"subset {entry_splits.subset!r}, "
    note = f"{entry.written}: {subset}split {split!r}, {files_of(len(paths))}"
    return f"{note}; not read: {other_files}" if other_files else note


def _no_subsets(entry: FilesEntry, subset: str) -> ConfigError:
    if not entry.is_folder:
        problem = "files listed one by one or matched by a glob have no subsets"
        remedy = "leave `subset` out, or name the folder whose README.md describes it"
    else:
        problem = f"{entry.written!r} has no {CARD} whose `configs:` defines subsets"
        remedy = "leave `subset` out"
        if any(path.startswith(f"{subset}/") for path in entry.paths):
            remedy = f"name the folder in data_files, {entry.written.rstrip('/')}/{subset}, and leave `subset` out"
    return ConfigError(
        f"data_files: {problem}; got subset {subset!r}: {remedy}", got=subset
    )


def _nothing_says(entry: FilesEntry, split: str) -> ConfigError:
    return ConfigError(
        f"data_files: no name in {entry.written!r} names a split, so all its files are the split {TRAIN!r}; got "
        f"split {split!r}. Leave `split` out to read them, list the files of each split, as data_files: {{train: "
        f"PATTERN, {split}: PATTERN}}, or divide documents at random by `splits: {{train: 0.9, validation: 0.1}}`",
        got=split,
        splits=[TRAIN],
    )


def _no_split(entry: FilesEntry, split: str, entry_splits: EntrySplits) -> ConfigError:
    said_by = "as it was saved"
    if entry_splits.origin == "card":
        said_by = f"by its {CARD}"
    elif entry_splits.origin == "names":
        said_by = "by the names of its files"
    names = list(entry_splits.splits)
    if entry_splits.splits.get(split) is not None:
        problem = f"has no file of split {split!r} that is read here, though its {CARD} names it"
    else:
        problem = f"has no split {split!r}{did_you_mean(split, names)}"
    unnamed = ""
    if entry_splits.unnamed:
        file_count = files_of(len(entry_splits.unnamed))
        unnamed = f"; {file_count} in no split ({_listed(entry_splits.unnamed)})"
    if entry.is_folder:
        all_of_them = f"{entry.written.rstrip('/')}/**/*.EXTENSION"
        remedy = f"To read files regardless of their names, write a glob: data_files: {all_of_them}"
    else:
        remedy = "To read files regardless of their names, leave `split` out"
    return ConfigError(
        f"data_files: {entry.written!r} {problem}; {said_by} it has {counted(entry_splits.splits)}{unnamed}. Set "
        f"`split` to one of {', '.join(names)}. {remedy}",
        got=split,
        splits=names,
    )


def _partly_named(
    entry: FilesEntry, split: str, entry_splits: EntrySplits
) -> ConfigError:
    return ConfigError(
        f"data_files: in {entry.written!r} some names contain a split ({counted(entry_splits.splits)}), and "
        f"{files_of(len(entry_splits.unnamed))} in no split ({_listed(entry_splits.unnamed)}), so it is not clear "
        f"which files to read. Write `split: {split}` to read only the files of that split, list the files of each "
        "split, as data_files: {train: PATTERN, test: PATTERN}, or read files regardless of their names with a "
        f"glob: {entry.written.rstrip('/')}/**/*.EXTENSION",
        splits=list(entry_splits.splits),
    )


def _refuse_ambiguous(entry: FilesEntry, splits: Splits) -> None:
    """Raise ConfigError if the name of a file says two splits."""
    split_of_path: dict[str, str] = {}
    for split, paths in splits.items():
        for path in paths:
            first_split = split_of_path.setdefault(path, split)
            if first_split != split:
                raise ConfigError(
                    f"data_files: in {entry.written!r} the name {path!r} contains two splits, "
                    f"{first_split} and {split}; "
                    "list the files of each split, as data_files: {train: PATTERN, test: PATTERN}",
                    got=path,
                )
