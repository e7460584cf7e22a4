"""Conversations and prompts: CPU seconds compared with the preparation of trainers.

Tokenlake and `datasets.map` make ids and masks of the same rows. Both must be equal.
"""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow.parquet as pq

from benchmarks import builds
from benchmarks.goals import Goal
from benchmarks.inputs import InputMaker, documents
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary, shared_folder

KINDS: Final = ("chat", "prompt")
PEERS: Final = {"datasets map": 1, "datasets map, 1,000 rows a call": 1000}
"""Name of a peer -> number of rows per call."""

OURS: Final = ("tokenlake", "tokenlake unpacked")
SYSTEMS: Final = (*OURS, *PEERS)
SMALL: Final = 0.5
"""MB of the input that shows the costs of starting."""

FASTER: Final = {1: 20.0, 1000: 14.0}
"""Goals: rows per call of a peer -> MB per CPU second divided by those of the peer."""

TEMPLATE: Final = (
    "Below is an instruction that describes a task.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
    "### Response:\n{output}"
)
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ ' ' + m['content'] + ' ' + eos_token }}"
    "{% endgeneration %}{% else %}{{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}{% endif %}"
    "{% endfor %}"
)
"""Chat template for machines without the real tokenizer, which has its own."""

_CORPORA: Final = {"chat": "math-chat.jsonl.gz", "prompt": "math-instruct.jsonl.gz"}
_CHAT_MODEL: Final = "models--meta-llama--Llama-2-7b-chat-hf"

_MADE_TEXTS: Final = 6000
"""Number of texts of this machine that stand for questions and answers."""


@dataclass(slots=True, kw_only=True)
class TextsCase:
    """Kind of input, with the measurements of each system.

    Attributes:
        kind: "chat" or "prompt".
        tokenizer: Folder of the tokenizer.
        whole: Folder of the input.
        part: Folder of the part of the input that peers get.
        small: Folder of the input that shows the costs of starting.
        startup: System -> measurement on the small input.
        runs: System -> measurements.
        failures: System -> reason of its failure.
        same: Result of comparing ids and masks.
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
        """Return the folder that a system reads."""
        return self.part if system in PEERS else self.whole

    def cpu(self, system: str) -> float:
        """Return the median CPU seconds of all processes of a system."""
        return statistics.median(run.cpu for run in self.runs[system])

    def rate(self, system: str) -> float:
        """Return MB of input per CPU second, start-up included."""
        return megabytes(self.input(system)) / self.cpu(system)

    def beyond(self, system: str) -> float:
        """Return MB per CPU second of additional input, without start-up."""
        additional = megabytes(self.input(system)) - megabytes(self.small)
        seconds = self.cpu(system) - self.startup[system].cpu
        return additional / max(seconds, 1e-3)

    def goals(self) -> Iterator[Goal]:
        """Yield the goals that compare Tokenlake with each peer."""
        additional = megabytes(self.whole) - megabytes(self.small)
        for peer, rows in PEERS.items():
            if peer not in self.runs:
                continue
            # A peer reads a shorter input, so that start-up weighs more. Its seconds
            # are extrapolated to the input of Tokenlake.
            peer_seconds = self.startup[peer].cpu + additional / self.beyond(peer)
            for system in OURS:
                if system not in self.runs:
                    continue
                yield Goal(
                    f"{self.kind}: MB per CPU s, {system} / {peer} on the same input ({self.same})",
                    peer_seconds / self.cpu(system),
                    "at least",
                    FASTER[rows],
                    "x",
                )


def megabytes(folder: Path) -> float:
    """Return the MB (10^6 bytes) of the JSON Lines files of a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6


def measure_texts(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    size_mb: float,
    peer_mb: float,
    repeats: int,
) -> list[TextsCase]:
    """Measure all systems on both kinds of input, in rotation after a warm-up.

    Ids and masks are compared afterwards, on the part of the peers.

    Args:
        work: Work folder of the benchmark.
        maker: Source of texts, for machines without real corpora.
        vocabulary: Tokenizer, for machines without the real one.
        size_mb: Size of the input in 10^6 bytes.
        peer_mb: Size of the part of the peers.
        repeats: Number of measurements.
    """
    cases: list[TextsCase] = []
    for kind in KINDS:
        cases.append(_case(work, maker, vocabulary, kind, size_mb, peer_mb))
    for case in cases:
        for system in SYSTEMS:
            # The first run is the warm-up.
            case.startup[system] = _run(work, case, system, case.small)
            case.startup[system] = _run(work, case, system, case.small)
        for turn in range(repeats):
            for system in SYSTEMS:
                if system not in case.failures:
                    _measure_run(work, case, system, f"{turn + 1}/{repeats}")
        case.same = _compare(work, case)
    return cases


def _measure_run(work: Path, case: TextsCase, system: str, label: str) -> None:
    """Run a system on its input, and add its measurement or failure to the case."""
    run = _run(work, case, system, case.input(system))
    if run.exit_code:
        # A failed system has no figures.
        case.failures[system] = f"exit code {run.exit_code}, see {work / 'logs'}"
        case.runs.pop(system, None)
        return
    case.runs.setdefault(system, []).append(run)
    print(
        f"{case.kind} {system} {label}: {run.cpu:.2f} CPU s",
        file=sys.stderr,
        flush=True,
    )


def _run(work: Path, case: TextsCase, system: str, source: Path) -> Measurement:
    """Run a system on an input, with an empty folder for its output."""
    output = _output_folder(work, system)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    log_path = work / "logs" / f"texts-{_file_name(system)}.log"
    log_path.parent.mkdir(exist_ok=True)
    return measure(
        _command(case, system, source, output),
        report=output / "measured.json",
        log=log_path,
        env=builds.environment(work, output / "hash-cache"),
    )


def _output_folder(work: Path, system: str) -> Path:
    """Return the folder for the output of a system."""
    return work / "scratch" / f"texts-{_file_name(system)}"


def _file_name(system: str) -> str:
    """Return the name of a system without spaces and commas."""
    return system.replace(",", "").replace(" ", "-")


def _command(case: TextsCase, system: str, source: Path, output: Path) -> list[str]:
    """Return the command of a system.

    For Tokenlake, the configuration of the build is written as well.
    """
    if system in PEERS:
        program = "benchmarks.systems.trl_texts"
        rows = str(PEERS[system])
        arguments = [case.kind, rows, str(source), case.tokenizer, str(output)]
        return [sys.executable, "-m", program, *arguments]
    # Tokenlake runs as a build of the library.
    is_packed = system == "tokenlake"
    config = _config(case, source, output / "store", is_packed=is_packed)
    config_path = output / "bench.yaml"
    config_path.write_text(json.dumps(config, indent=1))
    return builds.library_command(config_path, 1)


def _config(
    case: TextsCase, source: Path, store: Path, *, is_packed: bool
) -> dict[str, Any]:
    """Return the configuration of a build.

    Args:
        case: Kind of the input, and tokenizer.
        source: Folder of the input.
        store: Folder of the store.
        is_packed: True to pack rows of 2048 tokens.
    """
    dataset: dict[str, Any] = {
        "name": "texts",
        "data_files": f"{source}/*.jsonl",
        "tokenizer": case.tokenizer,
        "long_documents": "keep",
    }
    # Conversations have roles, prompts a template.
    if case.kind == "chat":
        dataset["content_field"] = "messages"
    else:
        dataset["prompt"] = {
            "template": TEMPLATE,
            "input_columns": ["instruction", "input"],
            "label_column": "output",
        }
    pack: dict[str, Any] = {"enabled": is_packed}
    if is_packed:
        pack["seq_length"] = 2048
    return {
        "name": builds.NAME,
        "datasets": [dataset],
        "pack": pack,
        "save": {"output_dir": str(store)},
    }


def _compare(work: Path, case: TextsCase) -> str:
    """Compare ids and masks of the part of the peers, row by row.

    Returns:
        Result for the report.
    """
    if case.failures:
        return f"not compared: {case.failures}"
    # 1. An unpacked build of the part.
    output = work / "scratch" / "texts-compared"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    run = measure(
        _command(case, "tokenlake unpacked", case.part, output),
        report=output / "measured.json",
        log=work / "logs" / "texts-compared.log",
        env=builds.environment(work, output / "hash-cache"),
    )
    if run.exit_code:
        return "not compared: the build failed"
    # 2. The rows of the build, and those of a peer.
    data = builds.version_folder(output / "store") / "data"
    our_rows: list[tuple[Any, Any]] = []
    for shard in sorted(data.glob("*.parquet")):
        our_rows += _rows(shard, "loss_mask")
    peer_file = _output_folder(work, "datasets map") / "train.parquet"
    peer_rows = list(_rows(peer_file, "mask"))
    # 3. Counts of equal rows.
    equal_ids = 0
    equal_masks = 0
    for our_row, peer_row in zip(our_rows, peer_rows, strict=True):
        our_ids, our_mask = our_row
        peer_ids, peer_mask = peer_row
        if np.array_equal(our_ids, peer_ids):
            equal_ids += 1
        if np.array_equal(our_mask, peer_mask):
            equal_masks += 1
    return (
        f"{len(our_rows):,} rows: {equal_ids:,} equal ids, {equal_masks:,} equal masks"
    )


def _rows(path: Path, mask_column: str) -> Iterator[tuple[Any, Any]]:
    """Yield the ids and the mask (bool) of each row of a Parquet file."""
    columns = ["input_ids", mask_column]
    for batch in pq.ParquetFile(path).iter_batches(columns=columns):
        # Lists of Arrow: the values of a row are a slice of the column.
        all_ids = batch.column("input_ids")
        all_masks = batch.column(mask_column)
        for ids, mask in zip(all_ids, all_masks, strict=True):
            mask_values: Any = mask.values
            mask_array = mask_values.to_numpy(zero_copy_only=False)
            yield np.asarray(ids.values), np.asarray(mask_array, bool)


def _case(
    work: Path,
    maker: InputMaker,
    vocabulary: Vocabulary,
    kind: str,
    size_mb: float,
    peer_mb: float,
) -> TextsCase:
    """Return a case without measurements. Its inputs are written unless they exist."""
    rows = list(_corpus(maker, kind))
    folders: list[Path] = []
    # The input, the part of the peers, and the input that shows start-up.
    for size in (size_mb, peer_mb, SMALL):
        folder = work / "inputs" / f"texts-{kind}-{size:g}MB"
        _write(folder, rows, int(size * 1e6))
        folders.append(folder)
    whole, part, small = folders
    return TextsCase(
        kind=kind,
        tokenizer=_tokenizer(work, vocabulary),
        whole=whole,
        part=part,
        small=small,
    )


def _tokenizer(work: Path, vocabulary: Vocabulary) -> str:
    """Return the folder of a Llama 2 tokenizer with a chat template.

    The template marks the texts of the assistant. Without the real tokenizer, the
    template is added to a copy of the given one.
    """
    pattern = f"hf/hub/{_CHAT_MODEL}/snapshots/*/tokenizer.json"
    paths = sorted(shared_folder().glob(pattern))
    if paths:
        return str(paths[0].parent.absolute())
    # Without the real tokenizer, add the template to a copy of the given one.
    folder = work / "tokenizers" / "llama2-chat"
    shutil.copytree(vocabulary.folder, folder, dirs_exist_ok=True)
    config_path = folder / "tokenizer_config.json"
    config: dict[str, Any] = {}
    if config_path.exists():
        config = json.loads(config_path.read_text())
    config["chat_template"] = CHAT_TEMPLATE
    config_path.write_text(json.dumps(config))
    return str(folder)


def _corpus(maker: InputMaker, kind: str) -> Iterator[dict[str, Any]]:
    """Yield real rows if this machine has them, otherwise rows of its texts."""
    path = shared_folder() / "corpora" / _CORPORA[kind]
    if path.exists():
        with gzip.open(path) as lines:
            for line in lines:
                yield orjson.loads(line)
        return
    texts = _made_texts(maker)
    # Neighbouring texts stand for a question and its answer.
    for question, answer in zip(texts[::2], texts[1::2], strict=True):
        if kind == "chat":
            question_turn = {"role": "user", "content": question}
            answer_turn = {"role": "assistant", "content": answer}
            yield {"messages": [question_turn, answer_turn]}
        else:
            yield {"instruction": "Go on.", "input": question, "output": answer}


def _made_texts(maker: InputMaker) -> list[str]:
    """Return the beginnings of 6,000 texts of this machine."""
    texts: list[str] = []
    for _, document in documents(maker.files()):
        # Beginnings of texts, if they are long enough.
        text = document[:400].strip()
        if len(text) > 100 and "\0" not in text:
            texts.append(text)
        if len(texts) == _MADE_TEXTS:
            break
    return texts


def _write(folder: Path, rows: Sequence[dict[str, Any]], size: int) -> None:
    """Write rows as JSON Lines until `size` bytes are reached, unless they exist.

    The rows are repeated if they are too few.
    """
    path = folder / "rows.jsonl"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as output_file:
        # Repeat the rows until the file is large enough.
        for row in cycle(rows):
            output_file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            if output_file.tell() >= size:
                break
