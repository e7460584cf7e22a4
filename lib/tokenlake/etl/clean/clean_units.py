"""Units of cleaning: ranges of files whose documents get signatures together.

The units are those of a build, of a fixed size. A unit is named by a hash of its inputs
and of the options of the signatures, so that a later run finds the signatures of
unchanged files again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tokenlake.base.fingerprint import fingerprint
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve_source, source_identity
from tokenlake.config.resolved import ResolvedSource, Signing
from tokenlake.errors import ConfigError
from tokenlake.etl.clean.signatures import FORMAT
from tokenlake.etl.events import Watcher
from tokenlake.etl.plan.exclusions import Positions, match_exclusions, of_unit
from tokenlake.etl.plan.unit_ranges import range_identity
from tokenlake.etl.plan.unit_size import LARGEST
from tokenlake.etl.planner import (
    Groups,
    check_predicates,
    read_listing,
    require_use,
    with_code,
)
from tokenlake.etl.sources.inputs import FileRange

_OTHER_STAGES: Final = (
    "splits",
    "tokenizer",
    "additional_fields",
    "field_types",
    "num_shards",
)
"""Parts of a source's identity on which its signatures do not depend."""


@dataclass(frozen=True, slots=True)
class CleanUnit:
    """Unit of a source that gets signatures.

    Attributes:
        source: Resolved source.
        ranges: Ranges of files that are read.
        excluded: File -> positions that a list of the user's own leaves out.
        fingerprint: Name of the signatures.
    """

    source: ResolvedSource
    ranges: Sequence[FileRange]
    excluded: Mapping[int, Sequence[int]]
    fingerprint: str

    @property
    def bytes(self) -> int:
        """Number of input bytes."""
        # The weight of a range is its bytes.
        return sum(file_range.weight for file_range in self.ranges)


def units_of(
    config: PipelineConfig, signing: Signing, output: str, on_event: Watcher
) -> Iterator[CleanUnit]:
    """Yield the units of all sources that are text, in order.

    Args:
        config: Configuration.
        signing: Options of the signatures.
        output: Path of the list that this run writes.
        on_event: Function that is told how far the listing is.

    Raises:
        ConfigError: No source has texts, or the texts of one cannot be cleaned.
        SourceError: Files cannot be listed.
    """
    sources = _text_sources(config, output)
    # Predicates are checked before anything is listed: a listing of a bucket may take
    # long.
    check_predicates(sources)
    hash_threads = config.source.hash_threads
    groups_of: dict[str, Groups] = {}
    for source in sources:
        files, groups = read_listing(
            source, unit_size_of(config), hash_threads, on_event
        )
        require_use(source, files)
        groups_of[source.name] = groups

    # Positions that lists of the user's own leave out, by source. One list may name
    # documents of several sources.
    excluded: dict[str, Positions] = {}
    for exclusions in match_exclusions(sources, groups_of, hash_threads):
        excluded.update(exclusions.positions)

    for source in sources:
        passed: dict[int, int | None] = {}
        excluded_of_source = excluded.get(source.name, {})
        for group in groups_of[source.name]:
            excluded_of_unit = of_unit(group, excluded_of_source, passed)
            unit_name = _fingerprint(source, group, signing)
            yield CleanUnit(source, group, excluded_of_unit, unit_name)


def text_source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a source whose text is a field.

    Raises:
        ConfigError: The text is made in another way, or a step that makes it is wrong.
    """
    if dataset.ids is not None:
        raise ConfigError(
            f"datasets.{dataset.name}: its records hold token ids, and cleaning compares texts; clean the text that "
            "the ids were made of, or leave this dataset out"
        )
    source = resolve_source(config, dataset)
    # Texts of several fields are composed after the steps that signatures know.
    for section in ("chat", "prompt", "preference"):
        if getattr(source.texts, section) is not None:
            raise ConfigError(
                f"datasets.{source.name}.{section}: `clean` reads the text of one field, but this text is composed of "
                "several; name a field with content_field in a configuration for cleaning, or create one with "
                "transforms (combine, apply)",
                source=source.name,
            )
    texts = replace(source.texts, left_open=())
    return with_code(replace(source, texts=texts))


def unit_size_of(config: PipelineConfig) -> int:
    """Return the input bytes of a unit.

    They are fixed, so that the signatures of old files are used again.
    """
    return config.source.unit_size or LARGEST


def split_notes(units: Iterable[CleanUnit]) -> list[str]:
    """Return a note for each source of which some splits are not read."""
    # A dict keeps the order, and drops equal notes of a source's units.
    notes: dict[str, None] = {}
    for unit in units:
        # The text is the same for all files of a source's entry.
        origin = unit.ranges[0].file.origin
        if origin:
            notes[f"{unit.source.name}: {origin}"] = None
    return list(notes)


def _text_sources(config: PipelineConfig, output: str) -> list[ResolvedSource]:
    """Return all sources except the datasets of the store."""
    sources: list[ResolvedSource] = []
    for dataset in config.datasets:
        if dataset.dataset is None:
            source = text_source(config, dataset)
            sources.append(_without_own_list(source, output))
    if not sources:
        raise ConfigError(
            "datasets: all of them are datasets of the store, which contains no texts; `clean` needs data_files"
        )
    return sources


def _without_own_list(source: ResolvedSource, output: str) -> ResolvedSource:
    """Return a source without the list that this run writes.

    That list is not there yet, or is an older one.
    """
    if source.exclude and Path(source.exclude).absolute() == Path(output).absolute():
        return replace(source, exclude=None)
    return source


def _fingerprint(
    source: ResolvedSource, ranges: Sequence[FileRange], signing: Signing
) -> str:
    """Return the name of a unit's signatures: a hash of everything they depend on."""
    # A stage that comes after the text would make signatures anew without need.
    identity = source_identity(source)
    for stage in _OTHER_STAGES:
        identity.pop(stage, None)
    return fingerprint(
        {
            "format": FORMAT,
            "source": identity,
            "ranges": range_identity(ranges),
            "signing": signing.identity(),
        }
    )
