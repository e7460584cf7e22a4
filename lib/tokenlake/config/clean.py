"""Section `clean`: what `tokenlake clean` looks for, and where the list of what to leave out goes."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.quality import Quality
from tokenlake.config.resolved import Signing
from tokenlake.config.section import Count, Fraction, Path, Section, Seed, Size, Switch, problem
from tokenlake.config.values import MIB

Exact: TypeAlias = Literal["folded", "text", "none"]


class MinHashConfig(Section):
    """Near duplicates by MinHash and locality-sensitive hashing; the defaults are FineWeb's (Penedo et al. 2024).

    Two documents of which a share s of the n-grams is common are found with a chance of 1 - (1 - s^rows)^bands.
    """

    enabled: Switch = True
    """Look for near duplicates."""

    ngram: Count = 5
    """Words of an n-gram; a document with fewer words has no near duplicates."""

    bands: Count = 14
    """Groups of hash values; documents with one group in common are near duplicates."""

    rows: Count = 8
    """Hash values of a group."""

    seed: Seed = 1
    """Seed of the hash functions."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.bands * self.rows > 4096:
            raise problem(f"bands * rows is {self.bands * self.rows}, must be at most 4096")
        if self.ngram > 64:
            raise problem(f"ngram: got {self.ngram}, must be at most 64")
        if self.seed >= 2**32:
            raise problem(f"seed: got {self.seed}, must be below 4294967296")
        return self


class ContaminationConfig(Section):
    """Documents that hold parts of evaluation sets."""

    sets: tuple[DatasetConfig, ...]
    """The evaluation sets, in the form of `datasets`; the `name` of each stands in the list of what is left out."""

    ngram: Count = 13
    """Words of an n-gram (13: GPT-3, Brown et al. 2020); a document of a set with fewer words cannot be found."""

    min_ngrams: Count = 1
    """A document is left out if at least so many of its n-grams are in evaluation sets..."""

    min_fraction: Fraction = 0.0
    """...and at least this share of them."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        names = [each.name for each in self.sets]
        if None in names:
            raise problem(
                f"sets.{names.index(None)}: name is missing; the list of what is left out names the set"
            )
        if len(set(names)) < len(names):
            raise problem("sets: two have one name")
        if self.ngram > 64:
            raise problem(f"ngram: got {self.ngram}, must be at most 64")
        return self


def _needs_sets(value: ContaminationConfig | None) -> ContaminationConfig | None:
    if value is not None and not value.sets:
        raise problem("sets: got an empty list, must have at least one evaluation set")
    return value


class CleanConfig(Section):
    """Section `clean`: what is left out before there are tokens. A build takes the list by `exclude`."""

    output: Path | None = None
    """Parquet of the documents to leave out (`file`, `position`, `reason`, ...); null: NAME-exclude.parquet."""

    filters: Quality = ()
    """Published filters of quality, by name: gopher_repetition, gopher_quality, c4, fineweb."""

    contamination: Annotated[ContaminationConfig | None, AfterValidator(_needs_sets)] = None
    """Evaluation sets of which nothing may be in the documents."""

    exact: Exact = "folded"
    """Duplicates: of the same words whatever their case and white space (folded), of the same bytes (text), or none."""

    minhash: MinHashConfig = MinHashConfig()
    """Near duplicates."""

    against: tuple[Path, ...] = ()
    """Lists that earlier runs wrote: what these kept is there already, so that its duplicates are left out."""

    memory: Size = 512 * MIB
    """Memory for sorting, beside 25 bytes for each document; it changes no result."""


def signing_of(clean: CleanConfig, evaluation: str = "") -> Signing:
    """Return what a configuration has made of every document.

    Args:
        evaluation: sha256 of the evaluation sets' n-grams, where there are any.
    """
    minhash, sets = clean.minhash, clean.contamination
    return Signing(
        exact="folded" if clean.exact == "none" else clean.exact,
        ngram=minhash.ngram,
        bands=minhash.bands if minhash.enabled else 0,
        rows=minhash.rows,
        seed=minhash.seed,
        filters=clean.filters,
        contamination=None if sets is None else (sets.ngram, sets.min_ngrams, sets.min_fraction),
        evaluation=evaluation,
    )
