"""Whatever data, names and errors hold, a terminal gets only what it can show: of
every command, well or not.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import tokenlake as tl
from tests.builds import Lender
from tests.hub_support import writable_hub
from tests.proof.support import key_file, plan_of, state_at
from tests.servers.hub import HubServer
from tests.store.support import copy_store
from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main
from tokenlake.cli.console import app
from tokenlake.etl import build_dataset

# A window's title, a cleared screen, a colour by one character of the C1 range, text
# that runs backwards.
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold]e"
# What rich writes: colours, and the cursor's moves of a bar that is drawn again.
_RICH = re.compile(r"\x1b\[[0-9;]*[mAK]|\x1b\[\?25[lh]|\r")
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


class Screen(io.StringIO):
    """A terminal, as far as one can ask."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path
) -> dict[str, object]:
    """Records, their fields and the names of their files are somebody else's."""
    root = tmp_path_factory.mktemp("hostile")
    folder = root / "in" / EVIL
    folder.mkdir(parents=True)
    records = [
        {"text": f"{EVIL} {i} " * 8, f"kept{EVIL}": f"{EVIL}{i}"} for i in range(40)
    ]
    (folder / f"{EVIL}.jsonl").write_text(
        "\n".join([*map(json.dumps, records), '{"text": null}'])
    )
    return {
        "name": "evil",
        "datasets": [
            {
                "name": "s",
                "data_files": str(root / "in"),
                "additional_fields": [f"kept{EVIL}"],
            }
        ],
        "default_tokenizer": str(tokenizer_dir),
        "source": {"on_bad_record": "quarantine", "max_bad_fraction": 0.5},
        "save": {"output_dir": str(root / "store")},
    }


@pytest.fixture(scope="module")
def built(
    settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    build_dataset(settings, workers=1)
    build_dataset(
        settings | {"source": {"on_bad_record": "quarantine", "max_bad_fraction": 0.6}},
        workers=1,
    )
    packed = {"name": "packed", "pack": {"enabled": True, "seq_length": 32}}
    rows = [{"name": "s", "data_files": settings["datasets"][0]["data_files"]}]  # type: ignore[index]
    build_dataset(settings | packed | {"datasets": rows}, workers=1)
    return Path(settings["save"]["output_dir"])  # type: ignore[index]


@pytest.fixture
def store(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lender: Lender
) -> Path:
    """A copy, where the names of columns of nobody's manifest may be read by
    mistake.
    """
    monkeypatch.setenv("TOKENLAKE_STORE", str(copy_store(built, tmp_path / "store")))
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("tokenlake.cli.build.open_pool", lambda *_: lender.lend(1))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tl.open("store", "packed", split="train"), batch_size=2)
    Path("state.json").write_text(json.dumps(state_at(plan, 2)))
    key_file(tmp_path)
    return tmp_path / "store"


@pytest.fixture
def config(settings: dict[str, object], store: Path) -> Path:
    path = store.parent / "evil.yaml"
    path.write_text(yaml.safe_dump(settings))
    row = {"input_ids": list(range(20)), EVIL: EVIL}
    Path(f"{EVIL}.jsonl").write_text(json.dumps(row))
    return path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


@pytest.fixture(params=["pipe", "terminal"])
def shown(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    store: Path,
    config: Path,
    server: HubServer,
) -> Callable[..., tuple[int, str]]:
    """Run a command; what it ended with, and what a terminal would have got."""

    def run(*arguments: str) -> tuple[int, str]:
        out, err = (
            (Screen(), Screen())
            if request.param == "terminal"
            else (io.StringIO(), io.StringIO())
        )
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            # The one for help is kept, colours and all.
            patch.setattr(app, "_console", Console())
            code = main(
                [argument.replace("CONFIG", str(config)) for argument in arguments]
            )
        text = out.getvalue() + err.getvalue()
        rest = _RICH.sub("", text) if request.param == "terminal" else text
        # CSV and proposals are data for a program behind a pipe.
        if request.param == "terminal" or not {"--csv", "inspect"} & set(arguments):
            assert not _CONTROL.findall(rest), _CONTROL.sub("@", rest)
        return code, text

    return run


SQL = f'''select '{EVIL}' as "{EVIL}", * from evil limit 3'''
WELL = {
    "init": [
        "init CONFIG.dir --data CONFIGDATA --tokenizer TOKENIZER",
        "init CONFIG.new --data CONFIGDATA --json",
    ],
    "doctor": ["doctor", "doctor --store EVIL --json"],
    "completion": ["completion bash", "completion zsh", "completion fish"],
    "inspect": [
        *(
            "inspect CONFIGDATA",
            "inspect CONFIGDATA --yaml",
            "inspect CONFIGDATA --json",
        ),
        "inspect CONFIGDATA --tokenizer EVIL",
    ],
    "plan": ["plan CONFIG", "plan CONFIG --json"],
    "run": ["run CONFIG --no-prefect", "run CONFIG --no-prefect --json"],
    "import": [
        "import EVIL.jsonl --tokenizer TOKENIZER --format jsonl --name ids --no-prefect",
        "import EVIL.jsonl --tokenizer TOKENIZER --format jsonl --name ids --no-prefect --json",
        "import EVIL.jsonl --tokenizer EVIL --format jsonl --name ids --print-config",
    ],
    "work": ["work store evil", "work store packed@v1 --json"],
    "schema": ["schema"],
    "ls": ["ls", "ls --json", "ls --store EVIL"],
    "show": ["show evil --files", "show evil --json", "show packed"],
    "tag": ["tag evil prod", "tag evil"],
    "diff": ["diff evil@v1 packed", "diff evil packed --json", "diff evil evil"],
    "verify": ["verify --all", "verify evil --deep --json"],
    "repair": ["repair evil --dry-run"],
    "gc": ["gc", "gc --json"],
    "rm": ["rm evil@v1 --dry-run", "rm evil@v1"],
    "export": [
        "export packed CONFIG.EVIL",
        "export evil CONFIG.out --format jsonl --json",
    ],
    "push": ["push packed --repo our-org/small --dry-run"],
    "peek": ["peek evil", "peek evil --full", "peek packed --json"],
    "explain": [
        "explain packed --batch-size 4 --step 1",
        "explain packed --batch-size 4 --step 1 --json",
    ],
    "clean": [
        "clean CONFIG --set clean.output=CONFIG-exclude.parquet",
        "clean CONFIG --set clean.output=CONFIG-exclude.parquet --json",
    ],
    "prove": [
        "prove state.json --key key.pem",
        "prove state.json --key key.pem -o CONFIG.statement",
    ],
    "report": [
        "report evil",
        "report packed -o EVIL.html --json",
        "report --output EVIL",
        "report --output EVIL --json",
    ],
    "sql": ["sql SELECT", "sql SELECT --json", "sql SELECT --csv", "sql"],
}
WRONG = {
    "inspect": ["inspect none/EVIL", "inspect CONFIGDATA --storage-options EVIL"],
    "plan": [
        "plan EVIL.yaml",
        "plan CONFIG --set EVIL=1",
        "plan CONFIG --set pack.EVIL=1",
        "plan CONFIG --EVIL",
    ],
    "init": [
        "init --data EVIL",
        "init CONFIG --data EVIL",
        "init CONFIG.new --data CONFIGDATA --type EVIL",
        "init CONFIG.new --data CONFIGDATA --tokenizer EVIL",
    ],
    "doctor": ["doctor --EVIL"],
    "completion": ["completion EVIL"],
    "run": [
        "run CONFIG --no-prefect --set datasets.0.content_field=EVIL",
        "run EVIL --no-prefect",
    ],
    "import": [
        "import EVIL --tokenizer TOKENIZER --format jsonl --name ids --no-prefect",
        "import EVIL.jsonl --tokenizer EVIL --format jsonl --name ids --no-prefect",
        "import EVIL.jsonl --tokenizer TOKENIZER --format EVIL --name ids",
        "import EVIL.jsonl --tokenizer TOKENIZER --format jsonl --name ids --field EVIL --no-prefect",
        "import CONFIGDATA --tokenizer TOKENIZER --format jsonl --name ids --no-prefect",
    ],
    "work": [
        "work store EVIL",
        "work EVIL evil",
        "work store evil --share EVIL",
        "work store evil --wait EVIL",
    ],
    "schema": ["schema --EVIL"],
    "ls": ["ls EVIL"],
    "show": ["show EVIL", "show evil@EVIL"],
    "tag": ["tag evil EVIL", "tag EVIL prod", "tag evil EVIL --remove"],
    "diff": ["diff evil EVIL"],
    "verify": ["verify EVIL", "verify evil@EVIL"],
    "repair": ["repair EVIL", "repair evil --config EVIL"],
    "gc": ["gc --grace EVIL", "gc EVIL"],
    "rm": ["rm EVIL", "rm evil@EVIL"],
    "export": [
        "export EVIL CONFIG.no",
        "export evil CONFIG.no --split EVIL",
        "export evil CONFIG.no --source EVIL",
    ],
    "push": [
        "push evil --repo EVIL",
        "push evil --repo a/b --token-env EVIL",
        "push packed --repo a/b --revision EVIL",
    ],
    "peek": ["peek EVIL", "peek evil --split EVIL"],
    "explain": [
        "explain EVIL",
        "explain packed --document EVIL:1",
        "explain packed --state EVIL",
    ],
    "clean": [
        "clean EVIL.yaml",
        "clean CONFIG --set clean.EVIL=1",
        "clean CONFIG --set clean.filters=[EVIL]",
    ],
    "prove": [
        "prove EVIL",
        "prove EVIL --key key.pem",
        "prove --check EVIL --public-key EVIL",
    ],
    "report": [
        "report EVIL",
        "report packed --output none/EVIL.html",
        "report --include EVIL",
        "report --rows EVIL",
    ],
    "sql": ["sql EVIL", "sql SELECTEVIL", "sql CAST"],
}


def arguments(line: str, settings: dict[str, object]) -> list[str]:
    words = {
        "SELECT": SQL,
        "SELECTEVIL": f'select "{EVIL}x" from evil',
        "CAST": f"select cast('{EVIL}' as int)",
        "TOKENIZER": settings["default_tokenizer"],
        "CONFIGDATA": settings["datasets"][0]["data_files"],  # type: ignore[index]
    }
    return [str(words.get(word, word.replace("EVIL", EVIL))) for word in line.split()]


def test_every_command_is_here() -> None:
    assert WELL.keys() == WRONG.keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", WELL)
def test_what_it_shows(
    shown: Callable[..., tuple[int, str]], settings: dict[str, object], command: str
) -> None:
    for line in WELL[command]:
        code, text = shown(*arguments(line, settings))
        assert (code, bool(text)) == (0, True), (line, text)


def test_what_is_wrong(
    shown: Callable[..., tuple[int, str]], settings: dict[str, object]
) -> None:
    for line in [*(line for lines in WRONG.values() for line in lines), "EVIL"]:
        code, text = shown(*arguments(line, settings))
        assert code in (1, 2), (line, text)
        assert "error" in text and "this is a bug" not in text, (line, text)


def test_a_damaged_version(shown: Callable[..., tuple[int, str]], store: Path) -> None:
    """A manifest that is somebody else's: its strings come back in errors, tables
    and decoded rows.
    """
    for path in (store / "evil").rglob("*.parquet"):
        path.rename(path.with_name(f"{EVIL}.parquet"))
    assert shown("verify", "evil")[0] == 3
    assert shown("peek", "evil")[0] in (1, 2, 3)
    assert shown("sql", "select * from evil")[0] in (1, 2, 3)


def test_a_bug(
    shown: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError(f"{EVIL} https://host/a?x=1&X-Amz-Signature=abc'd")

    monkeypatch.setattr(tl.Catalog, "datasets", broken)
    code, text = shown("ls")
    assert code == 1 and "this is a bug" in text and "owned" in text
    assert "Amz" not in text and "'d" not in text
