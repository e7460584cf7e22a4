"""The command line: what it prints where, and what it ends with."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import tokenlake
from tests.store.support import SEQ_LENGTH, build_store, copy_store, settings
from tokenlake.cli.app import main
from tokenlake.errors import CancelledError
from tokenlake.etl import BuildSession, build_dataset

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("cli"), tokenizer_dir)


@pytest.fixture(autouse=True)
def _this_store(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(store))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(store: Path, tokenizer_dir: Path, tmp_path: Path) -> Path:
    """The configuration of the store's dataset, as a file, with a store of its own."""
    path = tmp_path / "small.yaml"
    chosen = settings(store.parent, tokenizer_dir) | {
        "save": {"output_dir": str(tmp_path / "store")}
    }
    path.write_text(yaml.safe_dump(chosen))
    return path


def _json(capsys: Output, *arguments: str) -> object:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# -- the commands


def test_ls_lists_versions(capsys: Output, tmp_path: Path) -> None:
    assert main(["ls"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in out[1:]] == [
        ["small", "v1", "packed"],
        ["small", "v2", "packed"],
    ]
    assert all(line == line.rstrip() for line in out)
    assert main(["ls", "--store", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "tokenlake run CONFIG" in captured.err
    listed = _json(capsys, "ls", "small")
    assert [(each["version"], each["state"]) for each in listed] == [
        (1, "committed"),
        (2, "committed"),
    ]


def test_ls_tells_how_an_unfinished_build_fares(
    capsys: Output, store: Path, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "copy")
    version = copy / "small" / "v2"
    (version / "manifest.json").unlink()
    assert main(["ls", "--store", str(copy)]) == 0
    assert re.search(
        r"running, last change \d+ seconds? ago; 2 units done", capsys.readouterr().out
    )
    for path in version.rglob("*"):
        os.utime(path, (time.time() - 3.5 * 86_400,) * 2)
    assert main(["ls", "--store", str(copy)]) == 0
    assert "idle for 3 days; 2 units done" in capsys.readouterr().out.splitlines()[2]
    line = _json(capsys, "ls", "small", "--store", str(copy))[1]
    assert (line["state"], line["units_done"], line["error"]) == ("idle", 2, None)
    assert line["seconds_since_change"] == pytest.approx(3.5 * 86_400, rel=0.01)


def test_ls_tells_why_a_build_failed_until_it_is_resumed(
    capsys: Output, config: Path, tmp_path: Path, store: Path
) -> None:
    inputs = tmp_path / "pages"
    inputs.mkdir()
    settings = yaml.safe_load(config.read_text())
    settings["source"]["on_bad_record"] = "fail"
    settings["datasets"] = [{"name": "pages", "data_files": str(inputs / "*.jsonl")}]
    config.write_text(yaml.safe_dump(settings))
    good = json.dumps({"text": "a lake holds water"}) + "\n"
    # Behind what planning looks at.
    (inputs / "a.jsonl").write_text(good * 5000 + "{\n")
    assert main(["run", "--no-prefect", "--workers", "1", str(config)]) == 1
    error = capsys.readouterr().err
    (line,) = _json(capsys, "ls", "--store", str(tmp_path / "store"))
    assert (
        line["state"] == "failed"
        and "a.jsonl:5001" in line["error"]
        and line["error"] in error
    )
    assert main(["ls", "--store", str(tmp_path / "store")]) == 0
    assert re.search(
        r"failed \d+ seconds? ago: \S.*a\.jsonl:5001.*; 0 units done",
        capsys.readouterr().out,
    )
    opened = BuildSession.open(yaml.safe_load(config.read_text()))
    (line,) = _json(capsys, "ls", "--store", str(tmp_path / "store"))
    assert (opened.status, line["state"], line["error"]) == ("resumed", "running", None)


@pytest.mark.parametrize("error", [CancelledError("cancelled"), KeyboardInterrupt()])
def test_ls_tells_that_a_build_was_cancelled_until_it_is_resumed(
    error: BaseException, capsys: Output, config: Path, tmp_path: Path
) -> None:
    settings = yaml.safe_load(config.read_text())
    BuildSession.open(settings).failed(error)
    (line,) = _json(capsys, "ls", "--store", str(tmp_path / "store"))
    assert (line["state"], line["error"]) == ("cancelled", None)
    assert main(["ls", "--store", str(tmp_path / "store")]) == 0
    assert re.search(
        r"cancelled \d+ seconds? ago; 0 units done", capsys.readouterr().out
    )
    BuildSession.open(settings)
    (line,) = _json(capsys, "ls", "--store", str(tmp_path / "store"))
    assert line["state"] == "running"


@pytest.mark.parametrize("workers", ["-1", "0", "many"])
def test_workers_that_are_no_number_of_processes(
    capsys: Output, config: Path, workers: str
) -> None:
    assert main(["run", "--no-prefect", str(config), "--workers", workers]) == 2
    assert "--workers" in capsys.readouterr().err
    assert main(["run", "--no-prefect", str(config), f"--workers={workers}"]) == 2


def test_show_prints_the_whole_story(capsys: Output, store: Path) -> None:
    assert main(["show", "small", "--files"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "small v2",
        "Splits",
        "validation",
        "1 quarantined (null_text)",
        "Tokenizer",
        "Lineage",
    ):
        assert expected in out
    assert "data/train-00000-00.parquet" in out
    assert _json(capsys, "show", "small@v1") == json.loads(
        (store / "small/v1/manifest.json").read_bytes()
    )


def test_verify_says_all_well_or_ends_with_3(
    capsys: Output, store: Path, tmp_path: Path
) -> None:
    assert main(["verify", "small", "--deep"]) == 0
    assert "small v2: intact" in capsys.readouterr().out
    copy = copy_store(store, tmp_path / "copy")
    shard = copy / "small/v2/data/train-00000-00.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert main(["verify", "small", "--store", str(copy)]) == 3
    out = capsys.readouterr().out
    assert "small v2: 1 problem" in out
    assert "data/train-00000-00.parquet  sha256" in out
    assert main(["verify", "small", "--store", str(copy), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_peek_shows_boundaries_and_provenance(capsys: Output) -> None:
    assert main(["peek", "small@v1", "-n", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"train row 0  {SEQ_LENGTH} tokens in ")
    assert "── notes  river.txt:" in out
    assert (
        "centimetres overnight.\n<|endoftext|>" in out
        or "overnight.<|endoftext|>" in out
    )
    [row] = _json(capsys, "peek", "small", "-n", "1", "--split", "validation")
    assert row["split"] == "validation"
    assert all(segment["text"] and segment["ids"] for segment in row["segments"])


def test_report_writes_a_page(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "small@v1"]) == 0
    assert capsys.readouterr().out.startswith("small-v1.html: ")
    page = (tmp_path / "small-v1.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<h1>small v1</h1>" in page
    written = _json(capsys, "report", "small", "-o", str(tmp_path / "new.html"))
    assert written == {
        "path": str(tmp_path / "new.html"),
        "bytes": (tmp_path / "new.html").stat().st_size,
    }
    assert main(["report", "small@v9"]) == 2
    assert "small@v9" in capsys.readouterr().err


def test_report_without_a_name_writes_the_pages_of_the_store(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert (
        capsys.readouterr().out
        == "store-report/index.html: 2 versions, 2 written, 0 unchanged\n"
    )
    assert "small" in (tmp_path / "store-report" / "index.html").read_text(
        encoding="utf-8"
    )
    written = _json(capsys, "report", "-o", str(tmp_path / "store-report"))
    assert written == {
        "index": str(tmp_path / "store-report" / "index.html"),
        "versions": 2,
        "written": 0,
        "removed": 0,
        "unfinished": 0,
        "damaged": 0,
    }
    assert main(["report", "small", "--include", "run.json"]) == 2
    assert "leave out small, or --include" in capsys.readouterr().err


@pytest.mark.parametrize("name", [[], ["small@v1"]])
def test_a_report_is_served_until_ctrl_c(
    store: Path, tmp_path: Path, name: list[str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "tokenlake",
        "report",
        *name,
        "--serve",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        url = next(line.strip() for line in lines if line.startswith("http"))
        with urllib.request.urlopen(url, timeout=120) as answer:
            page = answer.read().decode()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert url.startswith("http://127.0.0.1:") and "small" in page
    assert errors.splitlines() == ["Ctrl-C ends the server"]


def test_sql_prints_tables_json_and_csv(capsys: Output) -> None:
    question = "select version, rows, [1, 2] as l from datasets order by version"
    assert main(["sql", question]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["version", "rows", "l"]
    records = _json(capsys, "sql", question)
    assert [record["version"] for record in records] == [1, 2]
    assert main(["sql", question, "--csv"]) == 0
    lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert lines == [
        ["version", "rows", "l"],
        *([str(r["version"]), str(r["rows"]), "[1, 2]"] for r in records),
    ]

    # Long results are cut on screen only.
    assert main(["sql", "select * from range(1000)"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 201
    assert "the first 200 of 1,000 rows" in captured.err
    assert len(_json(capsys, "sql", "select * from range(1000)")) == 1000


def test_sql_alone_lists_what_can_be_asked(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["sql"]) == 0
    out = capsys.readouterr().out
    for name in (
        "small ",
        '"small/documents"',
        '"small@v1"',
        '"small/quarantine"',
        "accounts",
        "\nmixture ",
    ):
        assert name in out


@pytest.mark.parametrize(
    ("sql", "out"),
    [
        (
            ["select 'größer' as ü, count(*) > 0 as n from small", "--csv"],
            "ü,n\ngrößer,True\n",
        ),
        (
            ["select chr(27) || '[2J' || chr(155) || chr(8238) || 'é' as t"],
            "t\n\\x1b[2J\\x9b\\u202eé\n",
        ),
        (
            ["select '[bold]x[/bold] [/] :smile:' as t"],
            "t\n[bold]x[/bold] [/] :smile:\n",
        ),
    ],
    ids=["letters", "controls", "markup"],
)
def test_data_is_shown_as_text(capsys: Output, sql: list[str], out: str) -> None:
    assert main(["sql", *sql]) == 0
    assert capsys.readouterr().out == out


def test_plan_estimates_and_writes_nothing(
    capsys: Output, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _json(capsys, "plan", str(config), "--set", "pack.seq_length=32")
    assert (plan["name"], plan["units"], [s["files"] for s in plan["sources"]]) == (
        "small",
        2,
        [2, 1],
    )
    assert main(["plan", str(config)]) == 0
    assert "of 64 tokens" in capsys.readouterr().out
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    assert main(["plan", str(config)]) == 0
    assert (
        "is on a disk with 10 B free; the build is expected to write about"
        in capsys.readouterr().err
    )
    monkeypatch.undo()
    assert main(["plan", str(config), "--set", "pack.seq_len=5"]) == 2
    assert (
        "seq_len (override): unknown key; did you mean 'seq_length'?"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "store").exists()
    real = build_dataset(str(config), workers=1).manifest.totals
    assert 0.8 < plan["estimate"]["tokens"] / real.tokens < 1.25
    assert plan["estimate"]["files"] >= real.files


@pytest.mark.parametrize(
    ("kind", "form"), [("rare", "packed"), ("same", "tokens"), ("rare", "padded")]
)
def test_a_plan_compresses_a_sample_to_foresee_the_size(
    kind: str,
    form: str,
    capsys: Output,
    config: Path,
    tmp_path: Path,
    tokenizer_dir: Path,
) -> None:
    """What texts repeat and what rows hold beside ids decides the size, so no
    constant can foresee it.
    """
    path = tmp_path / f"{kind}.jsonl"
    texts = [
        "a plain line of text " * 40 if kind == "same" else random_text(i)
        for i in range(2000)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = {
        "name_or_path": str(tokenizer_dir),
        "padding": form == "padded" and "max_length",
    }
    source = {
        "name": kind,
        "data_files": str(path),
        "tokenizer": tokenizer | {"max_length": 256},
    }
    pack = {"enabled": form == "packed", "seq_length": 512}
    config.write_text(
        yaml.safe_dump(
            yaml.safe_load(config.read_text()) | {"datasets": [source], "pack": pack}
        )
    )
    expected = _json(capsys, "plan", str(config))["estimate"]["output_bytes"]
    real = build_dataset(str(config), workers=1).manifest.totals.bytes
    assert 0.66 < expected / real < 1.5


def random_text(seed: int) -> str:
    chosen = random.Random(seed)
    return " ".join(
        chosen.choice(["lake", "naïve", "return"]) + str(chosen.randrange(1000))
        for _ in range(100)
    )


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_a_misspelt_field_of_text_is_told_with_the_near_one(
    form: str, capsys: Output, config: Path, tmp_path: Path
) -> None:
    whole = yaml.safe_load(config.read_text())
    table, path = (
        pa.table({"id": [1, 2], "text": ["one", "two"]}),
        tmp_path / f"x.{form}",
    )
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif form == "csv":
        path.write_text("id,text\n1,one\n2,two\n")
    else:
        pq.write_table(table, path)
    whole["datasets"] = [
        whole["datasets"][0] | {"data_files": str(path), "content_field": "txet"}
    ]
    config.write_text(yaml.safe_dump(whole))
    assert main(["plan", str(config)]) == 2
    told = capsys.readouterr().err
    assert "content_field: got 'txet'" in told
    assert "did you mean 'text'?" in told
    assert "quarantine" not in told


# -- run


def test_run_does_not_take_a_damaged_version_for_one_that_is_there(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    run = ["run", str(config), "--no-prefect"]
    assert main(run) == 0
    shard = next((tmp_path / "store").rglob("data/*.parquet"))
    original = shard.read_bytes()
    for cut, told in (
        (None, "is missing"),
        (original[:-1], f"has {len(original) - 1} bytes"),
    ):
        shard.unlink(missing_ok=True)
        if cut is not None:
            shard.write_bytes(cut)
        capsys.readouterr()
        assert main(run) == 3
        captured = capsys.readouterr()
        assert "already exists" not in captured.out
        assert f"{shard.name} {told}" in captured.err
        assert "`tokenlake repair small@v1` to repair it" in captured.err
    shard.unlink()
    shard.write_bytes(original)
    assert main(run) == 0
    assert "already exists" in capsys.readouterr().out


def test_run_builds_then_finds_what_it_built(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    assert main(["run", str(config), "--no-prefect", "--workers", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("small v1 committed\n")
    for expected in (
        "82 = 81 kept + 1 quarantined (null_text)",
        "tokenlake peek small --store",
    ):
        assert expected in captured.out, expected
    assert "small v1: 2 units" in captured.err
    done = _json(capsys, "run", str(config), "--no-prefect")
    assert (done["status"], done["version"], done["units"]["built"]) == ("exists", 1, 0)
    elsewhere = tmp_path / "else where"
    done = _json(
        capsys,
        "run",
        str(config),
        "--no-prefect",
        "--workers",
        "1",
        "--store",
        str(elsewhere),
    )
    assert (done["status"], done["path"]) == ("built", str(elsewhere / "small" / "v1"))


def test_printed_commands_name_the_version_of_the_configuration_that_ran(
    capsys: Output, config: Path, tmp_path: Path
) -> None:
    run = ["run", str(config), "--no-prefect", "--workers", "1"]
    assert main(run) == 0
    assert main([*run, "--set", "pack.seq_length=32"]) == 0
    # V2, which is the newest.
    assert "tokenlake peek small --store" in capsys.readouterr().out
    assert main(run) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("small v1 already exists")
    commands = re.findall(r"^tokenlake (\w+) (\S+) --store (\S+)$", shown, re.MULTILINE)
    assert [(command, name) for command, name, _ in commands] == [
        (command, "small@v1") for command in ("peek", "report", "verify")
    ]


def _only(text: Path) -> dict[str, object]:
    return {"datasets": [{"name": "web", "data_files": str(text)}]}


def test_a_run_with_nothing_to_do_starts_no_server(
    capsys: Output, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        raise KeyboardInterrupt

    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "a lake holds water"}\n')
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | _only(text)))
    assert main(["run", str(config), "--no-prefect", "--workers", "1"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("tokenlake_flows.launch.EmbeddedServer", start)
    monkeypatch.setenv("PREFECT_API_URL", "")
    assert main(["run", str(config)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(
        "small v1 already exists with the same inputs and settings: nothing to do"
    )
    assert (
        "tokenlake verify small@v1 --store" in captured.out
        and "Prefect" not in captured.err
    )
    for more in (["-s", "pack.seq_length=32"], ["--store", str(tmp_path / "else")]):
        assert main(["run", str(config), *more]) == CancelledError.exit_code
    text.write_text('{"text": "a lake holds more water"}\n')
    assert main(["run", str(config)]) == CancelledError.exit_code
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert main(["run", str(config)]) == 2
    assert "http://127.0.0.1:9/api" in capsys.readouterr().err


def test_a_store_on_the_command_line_needs_no_options_of_the_one_in_the_file(
    capsys: Output, store: Path, tokenizer_dir: Path, tmp_path: Path
) -> None:
    bucket = {
        "output_dir": "s3://lake/tokens",
        "storage_options": {"endpoint_url": "http://127.0.0.1:1"},
    }
    config = tmp_path / "small.yaml"
    config.write_text(
        yaml.safe_dump(settings(store.parent, tokenizer_dir) | {"save": bucket})
    )
    plan = _json(capsys, "plan", str(config), "--store", str(tmp_path / "other"))
    assert isinstance(plan, dict) and plan["store"] == str(tmp_path / "other")


def test_run_launches_the_flow(
    capsys: Output, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def launch(config, overrides, workers, on_event, executor, on_start):
        seen.append((config, list(overrides), workers))
        on_start()
        loaded = tokenlake.load_config(config, overrides)
        return build_dataset(loaded, workers=workers, on_event=on_event)

    monkeypatch.setattr("tokenlake_flows.launch.launch", launch)
    assert main(["run", str(config), "-s", "pack.seq_length=32", "--workers", "1"]) == 0
    assert seen == [(str(config), ["pack.seq_length=32"], 1)]
    captured = capsys.readouterr()
    assert " x 32, " in captured.out and captured.err.startswith(
        "starting Prefect, planning\n"
    )


_RESUME = (
    "cancelled: finished units are kept. To resume:  tokenlake run 'my config.yaml'"
)
_INSTALL = [
    "needs prefect, which is not installed",
    "pip install 'tokenlake[etl]'",
    "--no-prefect",
]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, [_RESUME]),
        (CancelledError("cancelled"), 130, [_RESUME]),
        (
            ModuleNotFoundError("No module named 'prefect'", name="prefect.flows"),
            1,
            _INSTALL,
        ),
        (ZeroDivisionError(), 1, ["ZeroDivisionError", "this is a bug in tokenlake"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_that_ends_early_says_what_to_do(
    capsys: Output,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    said: list[str],
) -> None:
    def launch(config, **_):
        raise error

    monkeypatch.setattr("tokenlake_flows.launch.launch", launch)
    monkeypatch.setattr(sys, "argv", ["tokenlake", "run", "my config.yaml"])
    assert main(["run", str(config)]) == code
    err = capsys.readouterr().err
    assert all(each in err for each in said), err


def test_the_commands_work_without_the_flows(
    capsys: Output, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "tokenlake_flows"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tokenlake_flows", None)
    assert main(["run", str(config)]) == 1
    err = capsys.readouterr().err
    assert (
        "needs tokenlake_flows, which is not installed" in err
        and "pip install 'tokenlake[etl]'" in err
    )
    assert main(["run", str(config), "--no-prefect", "--workers", "1", "--json"]) == 0
    capsys.readouterr()
    main(["doctor", "--json"])
    [check] = [
        each
        for each in json.loads(capsys.readouterr().out)["checks"]
        if each["name"] == "Prefect"
    ]
    assert check["state"] == "ok" and "--no-prefect" in check["found"]


# -- the process


def test_help_and_version_import_nothing_heavy(store: Path) -> None:
    code = "import sys; from tokenlake.cli.app import main; main(['--help']); main(['-V']); print([*sys.modules])"
    out = _shell(f'{sys.executable} -c "{code}"', store).stdout
    assert f"\ntokenlake {tokenlake.__version__}\n" in out
    for name in (
        "numpy",
        "pyarrow",
        "duckdb",
        "pydantic",
        "tokenizers",
        "prefect",
        "yaml",
    ):
        assert f"'{name}'" not in out


# What writes with rich, what writes data, an error, and what finds damage.
_LS, _SQL, _WRONG, _DAMAGED = (
    ["ls"],
    ["sql", "from range(100000)", "--csv"],
    ["nothing"],
    ["verify", "small@v1"],
)


@pytest.mark.parametrize(
    ("sink", "commands", "code", "said"),
    [
        ("| head -0", (_DAMAGED,), 3, ""),
        (">&-", (_LS,), 0, ""),
        (
            ">/dev/full",
            (_LS, _SQL),
            1,
            "error: cannot write to standard output: No space left on device\n",
        ),
        (">/dev/null 2>&-", (_WRONG,), 2, ""),
        ("2>&1 >&- | head -0", (_WRONG,), 2, ""),
    ],
)
def test_where_the_output_goes_stops_no_command(
    sink: str,
    commands: tuple[list[str], ...],
    code: int,
    said: str,
    store: Path,
    tmp_path: Path,
) -> None:
    copy = copy_store(store, tmp_path / "damaged")
    next((copy / "small/v1/data").iterdir()).write_bytes(b"")
    for arguments in commands:
        result = _shell(
            f"{sys.executable} -P -m tokenlake {shlex.join(arguments)} {sink}", copy
        )
        assert result.returncode == code, (arguments, result.stderr)
        # Notes, such as how many shards there are, go to stderr as ever.
        assert "".join(re.findall(r"error: .*\n|Traceback.*", result.stderr)) == said, (
            arguments,
            result.stderr,
        )


def test_a_reader_gets_what_it_wants(store: Path) -> None:
    result = _shell(
        f"{sys.executable} -P -m tokenlake sql 'from range(100000)' --csv | head -1",
        store,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "range\n", "")


def _shell(command: str, store: Path) -> subprocess.CompletedProcess:
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "PYTHONPATH": str(root / "lib"),
        "TOKENLAKE_STORE": str(store),
    }
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runn"], "there is no command 'runn'; did you mean 'run'?"),
        (["build"], "there is no command 'build'; did you mean 'run'?"),
        (["list"], "did you mean 'ls'?"),
        (["status"], "did you mean 'ls'?"),
        (["ls", "--foo"], "--foo"),
        (["peek", "small", "-n", "-3"], "Must be >= 1"),
        (["peek", "small", "-n", "0"], "Must be >= 1"),
        (["peek", "small", "-n", "x"], "x"),
        (["show", "smal"], "did you mean small?"),
        (["show", "small@v9"], "small@v9"),
        (["run", "absent.yaml", "--no-prefect"], "absent.yaml"),
        (["work", "small@prod", "--store", "artifacts"], "expected NAME or NAME@v3"),
        (["work", "./artifacts", "small@prod"], "expected NAME or NAME@v3"),
        (["work", "--store", "artifacts"], "no build is named"),
        (["work", "small@v1", "--share", "4/4"], "expected I/N"),
        (["run", "x.yaml", "--executor", "spark"], "spark"),
        (["sql", "delete from small"], "may only read"),
        (["ls", "--store", "abfs://bucket"], "not available in this release"),
        (["rm"], "tokenlake rm needs NAME"),
        (["rm", ""], "'' names no dataset; expected NAME, NAME@v3"),
        (["rm", "../..@v1"], "'../..@v1' names no dataset"),
        (["report", "small@"], "'small@' names no dataset"),
        (["ls", "--store"], "--store needs a value"),
        (
            ["doctor", "more", "words"],
            "tokenlake doctor has no use for 'more', 'words'",
        ),
        (["sql", "select 1", "--json", "--csv"], "--json and --csv: give one of them"),
        (
            ["init", "other.yaml", "--data", ".", "--store", "ftp://a/b"],
            "ftp:// is not available for a build",
        ),
        (
            ["explain", "small", "--batch-size", "2", "--id", "nothing"],
            "must be a field and its value",
        ),
    ],
    ids=lambda value: " ".join(value)[:30],
)
def test_what_cannot_be_meant_is_one_sentence_and_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert main(arguments) == 2
    captured = capsys.readouterr()
    lines = [
        line for line in captured.err.splitlines() if not line.endswith("planning")
    ]
    assert (
        captured.out == ""
        and lines[0].startswith(("error: ", '{"type": '))
        and said in captured.err
    )
    assert "Traceback" not in captured.err
    assert not (tmp_path / "other.yaml").exists()
