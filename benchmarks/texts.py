"""Conversations and prompts to masked tokens: CPU seconds beside a trainer's own
preparation, same ids and masks.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow.parquet as pq

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker, documents
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary

KINDS: Final = ("chat", "prompt")
PEERS: Final = {"datasets map": 1, "datasets map, 1,000 rows a call": 1000}
"""Rows that each gets at once."""
OURS: Final = ("tokenlake", "tokenlake unpacked")
SYSTEMS: Final = (*OURS, *PEERS)
SMALL: Final = 0.5  # MB that show what starting costs
FASTER: Final = {1: 20.0, 1000: 14.0}
"""Times a peer's MB per CPU second, at least, by the rows that it gets at once."""
TEMPLATE: Final = (
    "Below is an instruction that describes a task.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
    "### Response:\n{output}"
)
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ ' ' + m['content'] + ' ' + eos_token }}"
    "{% endgeneration %}{% else %}{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}{% endif %}"
    "{% endfor %}"
)
"""For a machine without the real tokenizer, and so without its template."""

_CORPORA: Final = {"chat": "math-chat.jsonl.gz", "prompt": "math-instruct.jsonl.gz"}
_CHAT_MODEL: Final = "models--meta-llama--Llama-2-7b-chat-hf"


@dataclass(slots=True, kw_only=True)
class TextsCase:
    """One kind of input and what each system took for it; the peer gets a part of
    it.
    """

    kind: str
    tokenizer: str
    whole: Path
    part: Path
    small: Path
    startup: dict[str, Measurement] = field(default_factory=dict)
    runs: dict[str, list[Measurement]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    same: str = ""

    def input(self, system: str) -> Path:
        """The folder a system reads."""
        return self.part if system in PEERS else self.whole

    def cpu(self, system: str) -> float:
        """Median CPU seconds of all processes."""
        return statistics.median(run.cpu for run in self.runs[system])

    def rate(self, system: str) -> float:
        """MB of input per CPU second, start-up included."""
        return megabytes(self.input(system)) / self.cpu(system)

    def beyond(self, system: str) -> float:
        """The same beyond what a small input takes: MB per CPU second of more input."""
        more = megabytes(self.input(system)) - megabytes(self.small)
        return more / max(self.cpu(system) - self.startup[system].cpu, 1e-3)

    def goals(self) -> Iterator[Goal]:
        """Ours against each peer."""
        more = megabytes(self.whole) - megabytes(self.small)
        for peer in filter(self.runs.__contains__, PEERS):
            # The peer's shorter run pays relatively more for its start-up, so it is
            # extrapolated to the same input.
            expected = self.startup[peer].cpu + more / self.beyond(peer)
            for ours in filter(self.runs.__contains__, OURS):
                what = f"{self.kind}: MB per CPU s, {ours} / {peer} on the same input ({self.same})"
                yield Goal(
                    what,
                    expected / self.cpu(ours),
                    "at least",
                    FASTER[PEERS[peer]],
                    "x",
                )


def megabytes(folder: Path) -> float:
    """MB (10^6 bytes) of the rows in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6


def measure_texts(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    size_mb: float,
    peer_mb: float,
    repeats: int,
) -> list[TextsCase]:
    """Both kinds, systems in rotation, a warm-up first; then ids and masks are
    compared on the peer's part.
    """
    cases = [_case(work, maker, vocabulary, kind, size_mb, peer_mb) for kind in KINDS]
    for case in cases:
        for system in SYSTEMS:
            # A warm-up, too.
            case.startup[system] = _once(work, case, system, case.small)
            case.startup[system] = _once(work, case, system, case.small)
        for turn in range(repeats):
            for system in SYSTEMS:
                _turn(work, case, system, f"{turn + 1}/{repeats}")
        case.same = _compare(work, case)
    return cases


def _turn(work: Path, case: TextsCase, system: str, name: str) -> None:
    if system in case.failures:
        return
    done = _once(work, case, system, case.input(system))
    if done.exit_code:
        case.failures[system] = f"exit code {done.exit_code}, see {work / 'logs'}"
        case.runs.pop(system, None)
        return
    case.runs.setdefault(system, []).append(done)
    print(
        f"{case.kind} {system} {name}: {done.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def _once(work: Path, case: TextsCase, system: str, source: Path) -> Measurement:
    output = _output(work, system)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    log = work / "logs" / f"texts-{_dashed(system)}.log"
    log.parent.mkdir(exist_ok=True)
    return measure(
        _command(case, system, source, output),
        report=output / "measured.json",
        log=log,
        env=builds.environment(work, output / "hash-cache"),
    )


def _output(work: Path, system: str) -> Path:
    return work / "scratch" / f"texts-{_dashed(system)}"


def _dashed(system: str) -> str:
    return system.replace(",", "").replace(" ", "-")


def _command(case: TextsCase, system: str, source: Path, output: Path) -> list[str]:
    if rows := PEERS.get(system):
        program = "benchmarks.systems.trl_texts"
        return [
            sys.executable,
            "-m",
            program,
            case.kind,
            str(rows),
            str(source),
            case.tokenizer,
            str(output),
        ]
    config = _config(case, source, output / "store", packed=system == "tokenlake")
    path = output / "bench.yaml"
    path.write_text(json.dumps(config, indent=1))
    return builds.library_command(path, 1)


def _config(
    case: TextsCase, source: Path, store: Path, *, packed: bool
) -> dict[str, Any]:
    dataset: dict[str, Any] = {
        "name": "texts",
        "data_files": f"{source}/*.jsonl",
        "tokenizer": case.tokenizer,
    }
    if case.kind == "chat":
        dataset["content_field"] = "messages"
    else:
        columns = {"input_columns": ["instruction", "input"], "label_column": "output"}
        dataset["prompt"] = {"template": TEMPLATE, **columns}
    return {
        "name": builds.NAME,
        "datasets": [{**dataset, "long_documents": "keep"}],
        "pack": {"enabled": packed, **({"seq_length": 2048} if packed else {})},
        "save": {"output_dir": str(store)},
    }


def _compare(work: Path, case: TextsCase) -> str:
    """Build the peer's part unpacked and compare row by row."""
    if case.failures:
        return f"not compared: {case.failures}"
    output = work / "scratch" / "texts-compared"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    done = measure(
        _command(case, "tokenlake unpacked", case.part, output),
        report=output / "measured.json",
        log=work / "logs" / "texts-compared.log",
        env=builds.environment(work, output / "hash-cache"),
    )
    if done.exit_code:
        return "not compared: the build failed"
    shards = sorted(
        (builds.version_folder(output / "store") / "data").glob("*.parquet")
    )
    ours = [row for shard in shards for row in _rows(shard, "loss_mask")]
    theirs = list(_rows(_output(work, "datasets map") / "train.parquet", "mask"))
    pairs = list(zip(ours, theirs, strict=True))
    ids = sum(np.array_equal(a[0], b[0]) for a, b in pairs)
    masks = sum(np.array_equal(a[1], b[1]) for a, b in pairs)
    return f"{len(pairs):,} rows: {ids:,} equal ids, {masks:,} equal masks"


def _rows(path: Path, mask: str) -> Iterator[tuple[Any, Any]]:
    for batch in pq.ParquetFile(path).iter_batches(columns=["input_ids", mask]):
        for ids, bits in zip(
            batch.column("input_ids"), batch.column(mask), strict=True
        ):
            values: Any = bits.values
            yield (
                np.asarray(ids.values),
                np.asarray(values.to_numpy(zero_copy_only=False), bool),
            )


def _case(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    kind: str,
    size_mb: float,
    peer_mb: float,
) -> TextsCase:
    rows = list(_corpus(maker, kind))
    folders = [
        _write(work / "inputs" / f"texts-{kind}-{size:g}MB", rows, int(size * 1e6))
        for size in (size_mb, peer_mb, SMALL)
    ]
    whole, part, small = folders
    return TextsCase(
        kind=kind,
        tokenizer=_tokenizer(work, vocabulary),
        whole=whole,
        part=part,
        small=small,
    )


def _shared() -> Path:
    return Path(
        os.environ.get(
            "TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"
        )
    )


def _tokenizer(work: Path, vocabulary: Vocabulary) -> str:
    """The folder of a Llama-2 tokenizer with a chat template that marks what the
    assistant says.
    """
    found = sorted(_shared().glob(f"hf/hub/{_CHAT_MODEL}/snapshots/*/tokenizer.json"))
    if found:
        return str(found[0].parent.absolute())
    folder = work / "tokenizers" / "llama2-chat"
    shutil.copytree(vocabulary.folder, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, "chat_template": CHAT_TEMPLATE}))
    return str(folder)


def _corpus(maker: InputMaker, kind: str) -> Iterator[dict[str, Any]]:
    """Real rows where the machine has them, else paragraphs of its own text."""
    path = _shared() / "corpora" / _CORPORA[kind]
    if path.exists():
        with gzip.open(path) as lines:
            yield from map(orjson.loads, lines)
        return
    pieces = (text[:400].strip() for _, text in documents(maker.files()))
    texts = list(
        islice(
            (piece for piece in pieces if len(piece) > 100 and "\0" not in piece), 6000
        )
    )
    for question, answer in zip(texts[::2], texts[1::2], strict=False):
        if kind == "chat":
            yield {
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            }
        else:
            yield {"instruction": "Go on.", "input": question, "output": answer}


def _write(folder: Path, rows: Sequence[dict[str, Any]], size: int) -> Path:
    path = folder / "rows.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as sink:
            for row in cycle(rows):
                sink.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                if sink.tell() >= size:
                    break
    return folder
