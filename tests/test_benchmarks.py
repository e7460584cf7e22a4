"""The benchmark's own instruments: a measurement that loses a process would flatter
somebody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from benchmarks import builds, cli, corpora, models
from benchmarks.cleaning import pairs_of, plant, true_pairs
from benchmarks.contenders import SYSTEMS, System
from benchmarks.determinism import differences, stamps
from benchmarks.goals import Goal, throughput_goals
from benchmarks.inputs import PARTS, Input, InputMaker, documents, recombined_lines
from benchmarks.loader import LoaderReport
from benchmarks.loader_contenders import LITDATA, LOADERS, OURS, UNSHUFFLED, Loader
from benchmarks.loader_input import LoaderInput
from benchmarks.loader_many import multiply
from benchmarks.loader_quality import stored_numbers
from benchmarks.loader_rates import LoaderSeries, describe_rows, rate_goals
from benchmarks.measure import ROOT, Measurement, measure
from benchmarks.report import Results, to_json, to_markdown
from benchmarks.rotation import Bench, Outcome, Series, expected_tokens
from benchmarks.systems import loader_bare, loader_convert
from benchmarks.systems.loader_sink import BATCH, LENGTH, Sink
from benchmarks.text import find_texts, is_text_name
from benchmarks.vocabularies import Vocabulary
from tests.etl.outputs_support import build_here, notes, settings, write_jsonl
from tests.tokenizers.tokenizer_samples import byte_level, reference_ids, save

pytest.importorskip(
    "tokenizers",
    reason="the benchmark needs the etl extra: pip install 'tokenlake[etl]'",
)


BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
# With SIGCHLD ignored this waits for the child, which nobody may reap.
WAIT = """
try:
    os.wait()
except ChildProcessError:
    pass
"""
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ballast = bytearray({megabytes} << 20)
        time.sleep(0.2)          # by now the parents are gone and nobody here can wait for us
        {work}
    os._exit(0)
os.wait()
"""


def run_python(
    tmp_path: Path, program: str, kill_after: float | None = None
) -> Measurement:
    return measure(
        [sys.executable, "-c", program],
        report=tmp_path / "measured.json",
        log=tmp_path / "log",
        kill_after=kill_after,
    )


class TestMeasure:
    def test_bills_a_daemon_that_outlives_its_parents(self, tmp_path: Path) -> None:
        daemon = DAEMON.format(
            megabytes=150, work="while time.process_time() < 0.5: pass"
        )
        run = run_python(tmp_path, daemon)
        # Whoever takes the samples stood still: once more.
        if max(run.processes.values()) < 150 << 20:
            run = run_python(tmp_path, daemon)
        assert run.exit_code == 0
        assert 0.45 <= run.cpu < 2.0
        assert run.peak_bytes > 150 << 20
        assert max(run.processes.values()) > 150 << 20
        assert run.left_behind == []

    def test_bills_plain_work_and_exit_codes(self, tmp_path: Path) -> None:
        run = run_python(tmp_path, BURN.format(seconds=0.3) + "raise SystemExit(3)")
        assert run.exit_code == 3
        assert 0.28 <= run.cpu < 1.5
        assert run.wall >= 0.28

    def test_refuses_when_a_process_is_billed_to_nobody(self, tmp_path: Path) -> None:
        ignoring = "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nif os.fork() == 0:\n"
        burner = (
            "".join(f"    {line}\n" for line in BURN.format(seconds=0.8).splitlines())
            + "    os._exit(0)\n"
        )
        with pytest.raises(RuntimeError, match="billed to nobody"):
            for _ in range(3):  # it is not seen by who stood still
                run_python(tmp_path, ignoring + burner + WAIT)

    def test_kill_ends_daemons_too(self, tmp_path: Path) -> None:
        pid = tmp_path / "pid"
        work = f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
        for kill_after in (0.5, 5, 50):  # later where it had not begun
            run = run_python(
                tmp_path, DAEMON.format(megabytes=1, work=work), kill_after=kill_after
            )
            assert run.killed and not run.left_behind
            if pid.exists() and pid.read_text():
                break
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def machine(tmp_path: Path, texts: dict[str, str]) -> Path:
    root = tmp_path / "machine"
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def prose(seed: int) -> str:
    return "".join(f"line {number} of text {seed}\n" for number in range(60))


class TestInput:
    def test_texts_are_distinct_wanted_and_in_an_order_of_their_own(
        self, tmp_path: Path
    ) -> None:
        texts = {f"a/{seed}.py": prose(seed) for seed in range(5)} | {
            "b/copy.py": prose(3)
        }
        unwanted = {
            "short.py": "x",
            "data.json": prose(9),
            "special.md": prose(8) + "</s>",
            "nul.py": prose(7) + "\0",
        }
        root = machine(tmp_path, texts | unwanted)
        found = find_texts([root])
        assert sorted(Path(file.path).name for file in found) == [
            "0.py",
            "1.py",
            "2.py",
            "3.py",
            "4.py",
        ]
        assert found == sorted(found) == find_texts([root, root / "a"])

    def test_names(self) -> None:
        assert all(
            map(
                is_text_name,
                ["a.py", "METADATA", "ls.1.gz", "changelog.Debian.gz", "x.rst"],
            )
        )
        assert not any(map(is_text_name, ["a.json.gz", "lib.so.1", "a.json", "RECORD"]))

    def test_repeats_are_the_same_lines_in_other_documents(
        self, tmp_path: Path
    ) -> None:
        files = find_texts(
            [machine(tmp_path, {f"{seed}.py": prose(seed) for seed in range(4)})]
        )
        first = [text for _, text in islice(documents(files), 12)]
        assert len(set(first)) == len(first)
        pieces = list(recombined_lines(prose(1), b"digest", 1))
        assert sorted("".join(pieces).splitlines()) == sorted(prose(1).splitlines())
        assert (
            pieces
            == list(recombined_lines(prose(1), b"digest", 1))
            != list(recombined_lines(prose(1), b"digest", 2))
        )

    def test_input_is_reproducible_complete_and_kept(self, tmp_path: Path) -> None:
        root = machine(tmp_path, {f"{seed}.py": prose(seed) for seed in range(40)})
        made = [
            InputMaker(tmp_path / work, [root]).make(0.1) for work in ("one", "two")
        ]
        files = [sorted(Path(one.folder).glob("*.jsonl")) for one in made]
        assert len(files[0]) == PARTS
        assert [path.read_bytes() for path in files[0]] == [
            path.read_bytes() for path in files[1]
        ]
        texts = [
            json.loads(line)["text"]
            for path in files[0]
            for line in path.read_text().splitlines()
        ]
        assert len(texts) == made[0].documents
        assert (
            sum(len(text.encode()) for text in texts) == made[0].text_bytes >= 100_000
        )
        assert made[0].original_bytes < made[0].text_bytes
        again = InputMaker(tmp_path / "one", []).make(0.1)
        assert again == made[0]

    def test_one_document(self, tmp_path: Path) -> None:
        root = machine(tmp_path, {f"{seed}.py": prose(seed) for seed in range(4)})
        made = InputMaker(tmp_path / "work", [root]).make_one_document(0.05)
        assert made.documents == 1
        assert made.largest_document == made.text_bytes >= 50_000


SOURCE = Input(
    folder="input",
    documents=10,
    text_bytes=100_000_000,
    file_bytes=105_000_000,
    original_bytes=100_000_000,
    largest_document=1_000_000,
    kinds={".py": 100_000_000},
)
GPT2 = Vocabulary(
    name="gpt2",
    folder="gpt2",
    origin="trained on the spot",
    eos="<|endoftext|>",
    size=50257,
    adds=0,
)


def measured(cpu: float) -> Measurement:
    return Measurement(
        exit_code=0, wall=cpu, user=cpu, system=0.0, sampled_cpu=cpu, peak_bytes=10**8
    )


def series(name: str, *cpus: float, source: Input = SOURCE) -> Series:
    system = next(one for one in SYSTEMS if one.name == name)
    small = replace(measured(0.5), exit_code=0)
    runs = [measured(cpu) for cpu in cpus]
    return Series(
        system=system,
        vocabulary=GPT2,
        source=source,
        runs=runs,
        small=small,
        small_megabytes=4.0,
        tokens=7,
    )


class TestFigures:
    def test_rates_are_medians(self) -> None:
        one = series("build-1", 9.0, 2.0, 2.5)
        assert one.cpu == 2.5
        assert one.rate == pytest.approx(40.0)
        assert one.marginal_rate == pytest.approx(96.0 / 2.0)

    def test_goals_compare_equal_worker_counts(self) -> None:
        part = replace(SOURCE, folder="part", text_bytes=10_000_000)
        ran = [series("build-1", 2.0), series("run-1", 12.0), series("bare-1", 1.0)]
        peers = [
            series("datasets-1", 6.5, source=part),
            series("datasets-2", 9.0, source=part),
        ]
        goals = throughput_goals([*ran, *peers])
        # 100 MB in 2 s against 10 MB in 6.5 s, or against 0.5 s for 4 MB and a second
        # for every further MB.
        assert [goal.got for goal in goals] == pytest.approx(
            [32.5, 96.5 / 2, 2.0, 10.0]
        )
        assert [goal.is_met for goal in goals] == [False, True, False, True]

    def test_limits_are_inclusive(self) -> None:
        assert Goal("", 8.0, "at most", 8.0).is_met
        assert Goal("", 35.0, "at least", 35.0).is_met
        assert not Goal("", 34.9, "at least", 35.0).is_met

    def test_the_count_most_systems_found_is_expected(self) -> None:
        odd = series("bare-1", 1.0)
        odd.tokens = 8
        ran = [series("build-1", 1.0), series("run-1", 1.0), odd]
        assert expected_tokens(ran) == {("gpt2", "input"): 7}
        report = to_markdown(Results(machine="m", versions={}, repeats=1, series=ran))
        assert "8 (others 7)" in report

    def test_a_failure_keeps_its_line(self) -> None:
        failed = Series(
            system=SYSTEMS[0],
            vocabulary=GPT2,
            source=SOURCE,
            failure="exit code 1: no such | thing",
        )
        results = Results(machine="m", versions={"a": "1"}, repeats=1, series=[failed])
        assert "failed: exit code 1: no such / thing" in to_markdown(results)
        json.dumps(to_json(results), default=str)


class Recorded(Bench):
    """A bench that runs nothing and remembers what it was asked for."""

    def __init__(self, failing: str = "") -> None:
        self.asked: list[tuple[str, str]] = []
        self._failing = failing
        self._log = lambda text: None

    def run(self, system: System, source: Input, vocabulary: Vocabulary) -> Outcome:
        self.asked.append((system.name, source.folder))
        if system.name == self._failing:
            raise RuntimeError("broken")
        return Outcome(measured=measured(1.0), tokens=7)


def test_systems_take_turns_after_a_warm_up() -> None:
    bench = Recorded()
    three = [
        Series(system=one, vocabulary=GPT2, source=SOURCE)
        for one in SYSTEMS
        if one.name in ("build-1", "bare-1", "datasets-1")
    ]
    bench.rotate(three, replace(SOURCE, folder="small"), 2)
    warm, turns = bench.asked[:6], bench.asked[6:]
    # The peer warms up on the small input.
    assert warm[0::2] == [
        ("build-1", "input"),
        ("bare-1", "input"),
        ("datasets-1", "small"),
    ]
    assert {folder for _, folder in warm[1::2]} == {"small"}
    assert [name for name, _ in turns] == ["build-1", "bare-1", "datasets-1"] * 2
    assert [len(one.runs) for one in three] == [2, 2, 2]


def test_a_failing_system_costs_the_others_nothing() -> None:
    two = [Series(system=one, vocabulary=GPT2, source=SOURCE) for one in SYSTEMS[:2]]
    Recorded(failing="build-1").rotate(two, SOURCE, 2)
    assert two[0].failure == "RuntimeError: broken"
    assert len(two[1].runs) == 2


def model_row(
    name: str, cpu: dict[str, float], digests: dict[str, str]
) -> models.ModelRow:
    """Measurements with one tokenizer: CPU seconds on the input, and hashes of the
    ids of the small one.
    """
    part = replace(SOURCE, folder="part", text_bytes=10_000_000)
    small = replace(SOURCE, folder="small", text_bytes=4_000_000)
    rows: dict[str, Series] = {}
    for system, seconds in cpu.items():
        rows[system] = series(
            system, seconds, source=part if system == models.REFERENCE else SOURCE
        )
        if system in digests:
            rows[system].digests["small"] = digests[system]
    return models.ModelRow(replace(GPT2, name=name), SOURCE, small, rows)


class TestModels:
    CPU: ClassVar = {
        models.BUILD: 6.0,
        models.BUILD_1: 3.0,
        models.GIGATOKEN: 2.0,
        models.TOKENIZERS_1: 4.0,
        models.REFERENCE: 6.5,
    }
    EQUAL: ClassVar = dict.fromkeys(
        (models.GIGATOKEN, models.TOKENIZERS_1, models.REFERENCE), "a"
    )

    def test_a_build_is_compared_with_the_fastest_loop_of_the_same_ids(self) -> None:
        row = model_row("gpt2", self.CPU, self.EQUAL)
        assert (row.fastest_exact_loop(), row.ids()) == (2.0, "equal")
        wrong = model_row("gpt2", self.CPU, self.EQUAL | {models.GIGATOKEN: "b"})
        assert (wrong.fastest_exact_loop(), wrong.ids()) == (4.0, "gigatoken DIFFERENT")
        # 4 MB take 0.5 s and 10 MB 6.5 s: 96 MB more take 96 s.
        assert row.cpu(models.REFERENCE) == pytest.approx(96.5)

    def test_other_ids_of_the_whole_input_are_seen(self) -> None:
        row = model_row("gpt2", self.CPU, self.EQUAL)
        row.series[models.GIGATOKEN].digests[SOURCE.folder] = "x"
        row.series[models.TOKENIZERS_1].digests[SOURCE.folder] = "y"
        assert not row.is_exact(models.GIGATOKEN)

    def test_loops_that_were_not_compared_are_no_measure(self) -> None:
        cpu = {
            name: seconds
            for name, seconds in self.CPU.items()
            if name != models.REFERENCE
        }
        row = model_row("gpt2", cpu, self.EQUAL)
        assert row.fastest_exact_loop() is None
        assert row.ids() == "gigatoken not compared, tokenizers 1.x not compared"

    def test_goals_and_cells(self) -> None:
        llama_3 = model_row("llama3_1", self.CPU, self.EQUAL)
        gemma = model_row(
            "gemma3", self.CPU | {models.BUILD: 12.0, models.BUILD_1: 2.0}, self.EQUAL
        )
        table = models.ModelTable(rows=[llama_3, gemma], notes=[])
        got = {goal.what: (goal.got, goal.limit) for goal in table.goals()}
        assert got == {
            "llama3_1: CPU s, build / fastest exact bare loop": (3.0, 1.5),
            "llama3_1: CPU s, build / bare loop, both with tokenizers 1.x": (0.75, 1.5),
            "gemma3: CPU s, build / build with Llama 3.1's tokenizer": (2.0, 1.5),
            "gemma3: CPU s, build / bare loop, both with tokenizers 1.x": (0.5, 0.5),
        }
        report = to_markdown(Results(machine="m", versions={}, repeats=1, models=table))
        assert (
            "| gemma3 | 12.0 (8.3 MB/s) | 2.0 (50.0 MB/s) | 2.0 (50.0 MB/s) | 4.0 (25.0 MB/s) | about 96.5"
            in report
        )

    def test_what_failed_has_no_figures(self) -> None:
        row = model_row("gemma3", self.CPU, self.EQUAL)
        row.series[models.BUILD_1].runs.clear()
        row.series[models.BUILD_1].failure = "RuntimeError: exit code 1"
        del row.series[models.GIGATOKEN]
        cells = models.ModelTable(rows=[row], notes=[]).cells()[0]
        assert cells[2:4] == ["failed, see the notes", ""]
        assert (cells[6], cells[7]) == ("1.50", "")


class TestCorpora:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[Path]:
        texts = {
            "text": [
                "First. " * 3 + "\n" + "A long line. " * 60,
                "x <|im_end|> y",
                "[INST] z",
                "same",
            ],
            "code": [
                "".join(f"value_{number} = {number}\n" for number in range(300)),
                "same",
            ],
        }
        paths: list[Path] = []
        for kind, rows in texts.items():
            paths.append(tmp_path / f"{kind}-00000.parquet")
            pq.write_table(pa.table({"text": rows}), paths[-1])
        return paths

    def test_documents_come_once_without_special_tokens(
        self, files: list[Path]
    ) -> None:
        made = list(islice(corpora.documents(files, ["<|im_end|>", "[INST]"]), 40))
        texts = [text for _, text in made]
        assert len(set(texts)) == len(texts)
        assert not [text for text in texts if "<|im_end|>" in text or "[INST]" in text]
        assert {kind for kind, _ in made[:3]} <= {"text", "code"}
        assert {kind for kind, _ in made[3:]} == {"repeated"}
        assert made == list(
            islice(corpora.documents(files, ["<|im_end|>", "[INST]"]), 40)
        )

    def test_pieces_of_a_text_are_kept(self, files: list[Path]) -> None:
        text = "One. Two! " * 50 + "\nshort\n" + "\u4e00\u3002" * 300
        made = "".join(corpora.recombine(text, b"digest", 1))
        assert sorted(made) == sorted(text)
        assert made != text

    def test_corpora_without_enough_pieces_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "text-0.parquet"
        pq.write_table(pa.table({"text": ["one line"]}), path)
        with pytest.raises(RuntimeError, match="too small"):
            list(islice(corpora.documents([path], []), 5))

    def test_an_input_says_how_many_words_are_distinct(
        self, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(corpora, "corpus_files", lambda: files)
        made = corpora.make_input(tmp_path, 0.01, ["[INST]", "<|im_end|>"])
        assert 0 < made.distinct_words < made.words
        assert f"{made.distinct_words / made.words:.2%} are distinct" in made.describe()
        assert corpora.make_input(tmp_path, 0.01, ["<|im_end|>", "[INST]"]) == made


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bare_loop_writes_the_ids_of_tokenizers(
    workers: int, tmp_path: Path
) -> None:
    texts = [["first text", "<|endoftext|> is text"], ["", "third\n\n text"]]
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for number, part in enumerate(texts):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (tmp_path / "in" / f"part-{number}.jsonl").write_text(lines)
    folder = save(byte_level(), tmp_path / "tokenizer")
    job = [
        str(tmp_path / "in"),
        str(folder),
        "<|endoftext|>",
        str(tmp_path / "out"),
        str(workers),
        "2",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.systems.bare_tokenizers", *job],
        cwd=ROOT,
        env=builds.environment(tmp_path, tmp_path / "cache"),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    ids = b"".join(
        path.read_bytes() for path in sorted((tmp_path / "out").glob("*.ids"))
    )
    expected = reference_ids(
        byte_level(), [text for part in texts for text in part], literal=True
    )
    assert np.frombuffer(ids, np.uint16).tolist() == [
        token for row in expected for token in row
    ]


def test_a_system_of_another_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System("tokenizers1", 1, needs=("tokenizers",), environment="TOKENIZERS1")
    monkeypatch.delenv("BENCH_PYTHON_TOKENIZERS1", raising=False)
    assert "BENCH_PYTHON_TOKENIZERS1" in (system.missing() or "")
    monkeypatch.setenv("BENCH_PYTHON_TOKENIZERS1", sys.executable)
    assert system.missing() is None
    assert system.python == sys.executable


class TestDeterminism:
    def tree(self, store: Path, data: bytes = b"data") -> Path:
        for name, content in {
            "data/train-00000-00.parquet": data,
            "data/train-00001-00.parquet": b"more",
            "ledger/00000.json": b"{}",
            "runs/a.json": str(store).encode(),
            "claim.json": str(store).encode(),
        }.items():
            path = builds.version_folder(store) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return store

    def test_trees_are_compared_without_what_may_differ(self, tmp_path: Path) -> None:
        one, two = self.tree(tmp_path / "one"), self.tree(tmp_path / "two")
        assert differences(builds.tree_digests(one), builds.tree_digests(two)) == []
        three = builds.tree_digests(self.tree(tmp_path / "three", b"other"))
        assert differences(builds.tree_digests(one), three) == [
            "data/train-00000-00.parquet"
        ]
        assert differences(three, {}) == sorted(three)

    def test_only_finished_units_are_stamped(self, tmp_path: Path) -> None:
        store = self.tree(tmp_path / "one")
        assert sorted(stamps(store)) == [
            "data/train-00000-00.parquet",
            "ledger/00000.json",
        ]


class TestOptions:
    def test_defaults(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BENCH_DIR", str(tmp_path))
        options = cli.parse([])
        assert options.work == tmp_path
        assert options.parts == set(cli.PARTS) - {"kill", "memory"}
        assert {
            "throughput",
            "texts",
            "packing",
            "positions",
            "determinism",
        } <= options.parts
        assert options.megabytes >= 300
        assert options.repeats >= 3
        assert len(options.systems) == len(SYSTEMS)

    def test_parts(self) -> None:
        assert cli.parse(["--only", "kill"]).parts == {"kill"}
        assert cli.parse(["--only", "kill"]).kills == 10
        assert "memory" in cli.parse(["--memory"]).parts
        assert (
            cli.parse(["--peer-megabytes", "0"]).peer_megabytes
            == cli.parse([]).megabytes
        )

    def test_a_missing_peer_names_the_install_line(self) -> None:
        assert "pip install" in (
            System("peer", 1, True, ("no_such_module",)).missing() or ""
        )
        assert System("build", 1).missing() is None


def rows_of_ids(count: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(7).integers(0, 50_257, (count, LENGTH), dtype=np.int32)


def figures_of(sink: Sink, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    sink.finish()
    return json.loads(capsys.readouterr().out)


def input_of(ids: npt.NDArray[np.int32]) -> LoaderInput:
    total = int(np.add.reduce(ids.view(np.uint64).reshape(-1)))
    return LoaderInput(
        folder="", rows=len(ids), tokens=ids.size, shards=1, bytes=1, sum=total
    )


class TestLoaderRows:
    def test_every_row_once_in_any_order_and_any_batches_is_all(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ids, sink = rows_of_ids(40), Sink()
        for epoch in range(3):
            for part in np.array_split(np.random.default_rng(epoch).permutation(40), 4):
                sink.take(ids[part])
        figures = figures_of(sink, capsys)
        assert figures["batches"] == 12
        assert describe_rows(figures, input_of(ids), 3, is_mixture=False) == "all"
        assert describe_rows(figures, input_of(ids), 2, is_mixture=False) == "120 of 80"

    def test_a_row_in_the_place_of_another_is_seen(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ids, sink = rows_of_ids(8), Sink()
        sink.take(ids[[0, 1, 2, 3, 4, 5, 6, 6]])
        figures = figures_of(sink, capsys)
        rows = describe_rows(figures, input_of(ids), 1, is_mixture=False)
        assert "OTHERS" in rows
        rows = describe_rows(figures, input_of(ids), 1, is_mixture=True)
        assert rows == "by weights"

    @pytest.mark.parametrize("kind", [np.int64, np.uint16])
    def test_only_what_a_trainer_can_take_counts(self, kind: type) -> None:
        with pytest.raises(TypeError, match="expected contiguous int32"):
            Sink().take(np.zeros((BATCH, LENGTH), kind))
        with pytest.raises(TypeError, match="expected contiguous int32"):
            Sink().take(np.zeros((LENGTH, BATCH), np.int32).T)

    def test_delivered_rows_are_found_among_the_stored_ones(
        self, tmp_path: Path
    ) -> None:
        ids = rows_of_ids(30)
        ids[11] = ids[4]
        order = np.random.default_rng(3).permutation(30)
        for path, rows in (
            (tmp_path / "stored.npy", ids),
            (tmp_path / "delivered.npy", ids[order]),
        ):
            sink = Sink(path)
            sink.take(rows)
            sink.finish()
        stored, delivered = (
            np.load(tmp_path / f"{name}.npy") for name in ("stored", "delivered")
        )
        numbers = stored_numbers(stored, delivered)
        assert sorted(numbers.tolist()) == list(range(30))
        assert np.array_equal(ids[numbers], ids[order])
        with pytest.raises(ValueError, match="not the 30 stored ones"):
            stored_numbers(stored, delivered[:-1])

    @pytest.mark.parametrize("form", ["parquet", "zstd", "copy"])
    def test_conversions_and_ceilings_lose_nothing(
        self, form: str, tmp_path: Path
    ) -> None:
        ids = rows_of_ids(600)
        source, target = tmp_path / "ids", tmp_path / form
        for folder in (source, target):
            folder.mkdir()
        for number, part in enumerate(np.array_split(ids, 3)):
            (source / f"{number:05d}.ids").write_bytes(part.tobytes())
        if form != "copy":
            loader_convert.FORMATS[form](sorted(source.glob("*.ids")), target)
        parts = loader_bare.SOURCES[form](source if form == "copy" else target)
        batches = list(loader_bare.batches(parts))
        assert [len(batch) for batch in batches] == [BATCH, BATCH, 600 - 2 * BATCH]
        assert np.array_equal(np.concatenate(batches), ids)

    def test_a_version_of_many_shards_is_a_version(self, tmp_path: Path) -> None:
        tokenizer = tmp_path / "tokenizer"
        tokenizer.mkdir()
        for name, data in byte_level().files.items():
            (tokenizer / name).write_bytes(data)
        config = settings(
            tmp_path, tokenizer, write_jsonl(tmp_path / "notes.jsonl", notes(40))
        )
        config |= {"name": "few", "pack": {"enabled": True, "seq_length": 32}}
        config["save"]["num_shards"] = 3
        built = build_here(config)
        multiply(built.folder, tmp_path / "store" / "many" / "v1", 5)
        few, many = (tl.open(tmp_path / "store", name) for name in ("few", "many"))
        assert len(many) == 5 * len(few)
        assert len(many.manifest.files) == 15
        assert np.array_equal(many[4 * len(few) + 3]["input_ids"], few[3]["input_ids"])


def loader_series(name: str, *cpus: float) -> LoaderSeries:
    loader = next(one for one in LOADERS if one.name == name)
    runs = [measured(cpu) for cpu in cpus]
    return LoaderSeries(
        loader=loader,
        mtok=800.0,
        runs=runs,
        small=measured(0.5),
        small_mtok=2.0,
        rows="all",
    )


class TestLoaderFigures:
    def test_rates_are_medians_and_ratios_are_of_this_run(self) -> None:
        goals = rate_goals(
            [loader_series(OURS, 9.0, 4.0, 3.0), loader_series(UNSHUFFLED, 20.5)]
        )
        beyond, peer = 798 / 3.5, 798 / 20.0
        assert [goal.got for goal in goals] == pytest.approx(
            [200.0, beyond, 20.5 / 4.0, beyond / peer]
        )
        assert [goal.is_met for goal in goals] == [True, True, True, True]

    def test_what_did_not_run_is_judged_by_nobody(self) -> None:
        failed = LoaderSeries(loader=LOADERS[0], failure="exit code 1: no such | thing")
        assert rate_goals([failed, loader_series(LITDATA, 2.0)]) == []
        report = LoaderReport(
            series=[failed, loader_series(LITDATA, 2.0)], quality=[["ours", "1 (1)"]]
        )
        results = Results(machine="m", versions={}, repeats=1, loader=report)
        shown = to_markdown(results)
        assert "failed: exit code 1: no such / thing" in shown
        assert "| ours | 1 (1) |" in shown
        json.dumps(to_json(results), default=str)

    def test_a_missing_loader_names_the_install_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reason = Loader("peer", "loader_peer", module="no_such_module").missing() or ""
        assert "pip install" in reason
        assert "BENCH_PYTHON_NO_SUCH_MODULE" in reason
        assert LOADERS[0].missing() is None
        monkeypatch.setenv("BENCH_PYTHON_NUMPY", sys.executable)
        assert Loader("peer", "loader_peer", module="numpy").missing() is None


def test_planted_documents_are_near_and_the_others_are_not() -> None:
    letters = "abcdefghij"  # for numbers are all one word
    plain = [
        " ".join(f"{seed}{a}{b}{c}" for a in letters for b in letters for c in "abcd")
        for seed in letters[:9]
    ]
    texts = list(plant(plain, 300_000))
    assert texts == list(plant(plain, 300_000))
    every = true_pairs(texts, pairs_of(dict.fromkeys(range(len(texts)), 0)))
    near = {pair for pair, similarity in every.items() if similarity > 0.3}
    assert near and all(second == first + 1 for first, second in near)
    assert all(
        similarity < 0.2 for pair, similarity in every.items() if pair not in near
    )
