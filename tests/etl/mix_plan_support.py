"""Stored versions as a plan sees them: manifests and a tokenizer, without a single
shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from tokenlake import Manifest, load_config
from tokenlake.base import file_id
from tokenlake.config.resolve import resolve
from tokenlake.etl import make_plan
from tokenlake.etl.plan import FoundParent, Plan
from tokenlake.etl.tokenizers import TokenizerFiles, describe
from tokenlake.runtime.mixing import MixtureStream
from tokenlake.runtime.store import (
    Account,
    InputFileEntry,
    Layout,
    ShardEntry,
    Store,
    shard_path,
)


def described(folder: Path) -> tuple[TokenizerFiles, dict[str, Any]]:
    """A tokenizer's files, and what a manifest says of them."""
    files = TokenizerFiles.read(folder)
    eos = files.eos_id
    pad = eos if files.pad_id is None else files.pad_id
    return files, {
        **describe(files),
        "folder": "",
        "eos_id": eos,
        "pad_id": pad,
        "append_eos": True,
    }


class Lake:
    """A store in which versions appear by their figures alone."""

    def __init__(
        self, store: Store, tokenizer: tuple[TokenizerFiles, dict[str, Any]]
    ) -> None:
        self.store = store
        self._files, self.facts = tokenizer

    def put(
        self,
        name: str,
        shards: Sequence[Sequence[int]] = ((10, 10), (10, 5)),
        *,
        version: int = 1,
        tokens: int = 20,
        kind: Any = "tokens",
        seq_length: int | None = None,
        split: str = "train",
        others: Mapping[str, int] | None = None,
        source: str | None = None,
        facts: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        build: Mapping[str, Any] | None = None,
        columns: Sequence[str] = ("input_ids", "file", "position"),
        input_size: int = 9,
        content: str = "0",
    ) -> Manifest:
        """Put a version into the store.

        Args:
            shards: rows of the row groups of each shard of the split.
            tokens: ids of a row.
            others: rows of further splits.
            settings: of the source, as identity sees them.
            build: of the build, as identity sees it.
            content: a digit of the logical hashes.
        """
        source = source or name
        own = [(split, groups) for groups in shards]
        every = own + [(other, (rows,)) for other, rows in (others or {}).items()]
        entries = [
            _shard(part, number, groups, tokens, columns, content)
            for number, (part, groups) in enumerate(every)
        ]
        entry = InputFileEntry(
            source=source,
            path="p",
            size=input_size,
            token="t",
            file_id=file_id(source, "p"),
        )
        texts = (
            {"preference": {"method": "dpo", "trainer": "trl"}}
            if kind == "preference"
            else {}
        )
        plain = {"texts": texts, "tokenizer": {"add_special_tokens": True}}
        manifest = Manifest(
            kind=kind,
            dataset=name,
            version=version,
            fingerprint=f"{version:064x}",
            seq_length=seq_length,
            config={
                "build": dict(build or {}),
                "sources": {source: {**plain, **(settings or {})}},
            },
            tokenizer={source: {**self.facts, **(facts or {})}},
            files=tuple(entries),
            other_files={},
            inputs=(entry,),
            accounts={source: Account()},
            produced_by={"tokenlake": f"{version}"},
        )
        layout = Layout(name, version)
        for file, data in self._files.files.items():
            self.store.put_new(layout.key(f"tokenizer/{file}"), data)
        self.store.put_new(layout.manifest, manifest.to_bytes())
        return manifest

    def plan(self, names: Sequence[str | dict[str, Any]], **sections: Any) -> Plan:
        """Plan a build of datasets of the store; `mix` and `pack` are sections."""
        datasets = [
            {"name": name.partition("@")[0], "dataset": name}
            if isinstance(name, str)
            else name
            for name in names
        ]
        config = {
            "name": "mixed",
            "datasets": datasets,
            "save": {"output_dir": self.store.url},
            **sections,
        }
        return make_plan(resolve(load_config(config)))


def figures(name: str, shards: Sequence[Sequence[int]], tokens: int) -> FoundParent:
    """A parent of which nothing is known but its rows."""
    columns = ("input_ids", "file", "position")
    entries = [
        _shard("train", number, groups, tokens, columns, "0")
        for number, groups in enumerate(shards)
    ]
    manifest = Manifest(
        kind="tokens",
        dataset=name,
        version=1,
        fingerprint="0" * 64,
        seq_length=None,
        config={},
        tokenizer={},
        files=tuple(entries),
        other_files={},
        inputs=(),
        accounts={},
        produced_by={},
    )
    return FoundParent(name, manifest, "train")


def _shard(
    split: str,
    unit: int,
    groups: Sequence[int],
    tokens: int,
    columns: Sequence[str],
    content: str,
) -> ShardEntry:
    rows = sum(groups)
    return ShardEntry(
        path=shard_path(split, unit, 0),
        split=split,
        unit=unit,
        part=0,
        bytes=max(1, rows * tokens),
        sha256="a" * 64,
        rows=rows,
        tokens=rows * tokens,
        documents=rows,
        row_groups=tuple(accumulate(groups, initial=0))[:-1],
        logical=dict.fromkeys(columns, content * 32),
    )


def taken(stream: MixtureStream, start: int, stop: int) -> list[tuple[int, int]]:
    """Of each source: how many row groups a range of positions takes rows of, epoch
    by epoch, and how many rows.
    """
    rows = stream.rows(start, stop)
    found: list[tuple[int, int]] = []
    for source in range(len(stream.orders)):
        own = rows.source == source
        found.append(
            (
                len(
                    set(
                        zip(
                            rows.epoch[own].tolist(),
                            rows.group[own].tolist(),
                            strict=True,
                        )
                    )
                ),
                int(own.sum()),
            )
        )
    return found
