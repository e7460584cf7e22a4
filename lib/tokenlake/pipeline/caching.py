"""Which rows of tokens are kept on disk, and under which name: everything that decides them is in it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake._version import __version__
from tokenlake.config.identity import source_identity
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import ConfigError
from tokenlake.fingerprint import fingerprint
from tokenlake.pipeline.cached import CachedShardedSource
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.tokenizers.manager import compute_tokenizer_hash
from tokenlake.transforms.callables import sealed

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.pipeline.context import PipelineContext

_FORMAT: Final = 1
"""Of the kept rows; a new one makes all of them anew."""


def cached(
    tokens: ShardedDataSource,
    rows: ShardedDataSource,
    name: str,
    context: PipelineContext,
    wanted: dict[str, Any],
) -> ShardedDataSource:
    """Return rows of tokens, which are kept where ``tokenize.cache_tokenized`` says so.

    Where it says nothing, they are kept if the dataset has a `cache_path`, and nothing decides them that cannot be told
    by its name (a lambda, say): a pipeline fills no disk unasked.

    Args:
        tokens: what is kept.
        rows: what it is made of.
        wanted: what decides the tokens beside the configuration.

    Raises:
        ConfigError: they are to be kept, and something decides them that cannot be told by its name.
    """
    dataset = context.dataset(name)
    asked = context.config.tokenize.cache_tokenized
    if asked is False or dataset is None or not dataset.cache_enabled or not (asked or dataset.cache_path):
        return tokens
    folder = _Folder(dataset, rows, context, wanted)
    try:
        folder.check()
    except ConfigError as error:
        if not asked:
            return tokens
        raise ConfigError(
            f"tokenize.cache_tokenized: the rows of {name!r} cannot be kept, because nobody could tell when they "
            f"change: {error}. Leave cache_tokenized out, or save() the rows"
        ) from error
    return CachedShardedSource(tokens, folder)


@final
class _Folder:
    """The folder of a source's tokens; asked when rows are drawn, because packing may be asked for later."""

    def __init__(
        self,
        dataset: DatasetConfig,
        rows: ShardedDataSource,
        context: PipelineContext,
        wanted: dict[str, Any],
    ) -> None:
        self._dataset, self._rows, self._context, self._wanted = dataset, rows, context, wanted
        self._found: dict[bool, Path] = {}

    def __call__(self) -> Path:
        packing = self._context.packing
        if packing not in self._found:
            own = self._dataset.cache_path
            self._found[packing] = (Path(own) if own else _default_folder()) / self._key(packing)
        return self._found[packing]

    def check(self) -> None:
        """Raise ConfigError if something decides the rows that has no name."""
        if self._rows is not self._context.opened.get(self._dataset.name or ""):
            raise ConfigError("a stage of your own makes them")
        sealed(resolve_source(self._context.config, self._dataset).texts)

    def _key(self, packing: bool) -> str:
        config = self._context.config
        pack = config.pack.model_copy(update={"enabled": packing})
        source = resolve_source(config.model_copy(update={"pack": pack}), self._dataset)
        chosen = self._context.tokenizers[source.name]
        return fingerprint(
            {
                "format": _FORMAT,
                "version": __version__,
                "source": source_identity(replace(source, texts=sealed(source.texts))),
                "num_rows": source.num_rows,
                "inputs": [list(version) for version in self._rows.versions],
                "tokenizer": compute_tokenizer_hash(chosen.loaded),
                "options": chosen.options.model_dump(mode="json", exclude={"name_or_path"}),
                "packing": packing,
                "eos": config.pack.eos_token_id if packing else None,
                **self._wanted,
            }
        )[:32]


def _default_folder() -> Path:
    own = os.environ.get("TOKENLAKE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(own) if own else Path(home) / "tokenlake") / "tokens"
