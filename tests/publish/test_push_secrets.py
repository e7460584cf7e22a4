"""Secrets never leave with a version: planted ones are found wherever they are,
named by place and never shown.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hub_support import writable_hub
from tests.servers.hub import HubServer
from tests.store.support import copy_store, settings
from tokenlake import Catalog, push_to_hub
from tokenlake.base import resolve_options
from tokenlake.cli.app import main
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset
from tokenlake.etl.publish import Detector, PublishedFile, is_published, scan_texts
from tokenlake.runtime.store import HashingFile, open_store

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "our-org/small"
RANDOM = Random(7)


def drawn(letters: str, length: int) -> str:
    return "".join(RANDOM.choice(letters) for _ in range(length))


WORD = string.ascii_letters + string.digits
# Put together here, so that no scanner of repositories takes this file for a leak.
PLANTED = {
    "AWS access key": "AK" + "IA" + drawn(string.ascii_uppercase, 16),
    "Hugging Face token": "hf" + "_" + drawn(WORD, 34),
    "GitHub token": "gh" + "p_" + drawn(WORD, 36),
    "GitLab token": "gl" + "pat-" + drawn(WORD, 20),
    "API key (sk-)": "s" + "k-proj-" + drawn(WORD, 40) + "7abc",
    "Stripe key": "s" + "k_live_" + drawn(WORD, 24),
    "Google API key": "AI" + "za" + drawn(WORD, 35),
    "Google OAuth token": "ya" + "29." + drawn(WORD, 40),
    "Google service account": '{"type": "service' + '_account", "project_id": "x"}',
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE",
    "JSON web token": "ey"
    + "J"
    + drawn(WORD, 20)
    + ".ey"
    + "J"
    + drawn(WORD, 30)
    + "."
    + drawn(WORD, 40),
    "SendGrid key": "S" + "G." + drawn(WORD, 22) + "." + drawn(WORD, 43),
    "Twilio key": "S" + "K" + drawn("0123456789abcdef", 32),
    "DigitalOcean token": "do" + "p_v1_" + drawn("0123456789abcdef", 64),
    "Databricks token": "da" + "pi" + drawn("0123456789abcdef", 32),
    "Shopify token": "sh" + "pat_" + drawn("0123456789abcdef", 32),
    "Telegram token": drawn(string.digits, 10) + ":A" + "A" + drawn(WORD, 33),
    "Vault token": "hv" + "s." + drawn(WORD, 24),
    "Grafana token": "gl" + "sa_" + drawn(WORD, 41),
    "Slack token": "xo" + "xb-" + drawn(string.digits, 12) + "-" + drawn(WORD, 24),
    "npm token": "np" + "m_" + drawn(WORD, 36),
    "PyPI token": "py" + "pi-AgEIcHlwaS5vcmc" + drawn(WORD, 60),
    "Azure storage key": "Account"
    + "Key="
    + base64.b64encode(RANDOM.randbytes(64)).decode(),
    "signed URL": "https://x.example/a?X-Amz-"
    + "Signature="
    + drawn("0123456789abcdef", 64),
    "URL with a password": "postgres://writer:"
    + drawn(WORD, 12)
    + "@db.example/tokens",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """``small`` v1 of one shard, with a secret in its one row of text."""
    return build(
        tmp_path_factory.mktemp("secrets"),
        tokenizer_dir,
        "lake",
        f"A note: {PLANTED['GitHub token']} here.",
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


def kinds(
    text: str, path: str = "README.md", environment: dict[str, str] | None = None
) -> list[str]:
    data = text.encode()
    return [
        f.kind
        for f in scan_texts(
            [PublishedFile(path, len(data), "", data)], Detector(environment)
        )
    ]


@pytest.mark.parametrize("kind", sorted(PLANTED))
@pytest.mark.parametrize("around", ["{}", "words before\n{} and after", '{{"a": {}}}'])
def test_every_shape_is_found(kind: str, around: str) -> None:
    secret = json.dumps(PLANTED[kind]) if around.startswith("{{") else PLANTED[kind]
    assert kind in kinds(around.format(secret)) or kind == "Google service account"
    assert kind in kinds(around.format(PLANTED[kind]))


WORDS = sorted(
    kind
    for kind in PLANTED
    if not {*PLANTED[kind]} & {" ", "/", "&"} and "://" not in PLANTED[kind]
)
CUTS = {
    "a sum of literals": '"{}" + "{}"',
    "a sum over two lines": '"{}" +\n    "{}"',
    "literals beside each other": "('{}'\n '{}')",
    "a line that goes on": '"{}\\\n{}"',
    "a folded line of YAML": "key: >-\n  {}\n  {}\n",
    "a comment": "# {}\n# {}",
    "a line end that is written out": "{}\\n{}",
    "an invisible letter": "{}\u200b{}",
}


@pytest.mark.parametrize("cut", CUTS)
def test_secrets_in_pieces_are_found(cut: str) -> None:
    for kind in WORDS:
        for place in (2, 9, 20):
            first, second = PLANTED[kind][:place], PLANTED[kind][place:]
            found = kinds(f"model: x\n{CUTS[cut].format(first, second)}\nend: y\n")
            assert kind in [each.removesuffix(", in pieces") for each in found], (
                kind,
                place,
            )


@pytest.mark.parametrize(
    "around", ["{}", "user:{}", "export KEY={}\n", "a longer text with {} in it"]
)
def test_secrets_in_base64_and_hexadecimal_digits_are_found(around: str) -> None:
    for kind in sorted(set(PLANTED) - {"Google service account"}):
        check_encodings(kind, around.format(PLANTED[kind]).encode())


def check_encodings(kind: str, data: bytes) -> None:
    plain = base64.b64encode(data).decode()
    wrapped = base64.encodebytes((data + b" ") * 3).decode()
    for text in (
        f"key: {plain}",
        f"data:text/plain;base64,{plain}",
        f"path/{plain}",
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        base64.b64encode(plain.encode()).decode(),
        f"key: |\n{wrapped}",
        data.hex(),
        data.hex().upper(),
    ):
        assert [found for found in kinds(text) if found.startswith(f"{kind}, in ")], (
            text
        )


def test_a_private_key_on_one_line_is_found() -> None:
    key = "-----BEGIN " + "PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n"
    assert kinds(f'{{"private_key": "{key}"}}', "tokenizer/x.json") == ["private key"]


def test_letters_that_json_escapes_are_read() -> None:
    secret = PLANTED["Hugging Face token"]
    text = f'{{"a": "\\u{ord(secret[0]):04x}{secret[1:]}"}}'
    assert kinds(text, "tokenizer/x.json") == ["Hugging Face token"]


def test_values_of_this_process_are_found_in_base64() -> None:
    secret = "quite ordinary words"
    for before in ("", "a", "ab", "user:"):
        text = base64.b64encode(f"{before}{secret} and more".encode()).decode()
        found = kinds(text, environment={"DB_PASSWORD": secret})
        assert found == ["the value of the environment variable DB_PASSWORD, encoded"]


def test_lists_of_words_and_hashes_are_no_secrets_in_pieces() -> None:
    """A vocabulary has a word on each line, and some of them begin like credentials."""
    words = "\n".join(
        [
            "hf_",
            "AKIA",
            "sk-",
            "npm_",
            "SG.",
            "gh",
            "p_",
            "the",
            "river",
            "rose",
            "by",
            "7",
        ]
        * 50
    )
    hashes = "\n".join(
        hashlib.sha256(bytes([number])).hexdigest() for number in range(100)
    )
    vectors = "\n".join(
        base64.b64encode(RANDOM.randbytes(90)).decode() for _ in range(100)
    )
    for text in (
        words,
        hashes,
        vectors,
        json.dumps(words.split()),
        json.dumps(hashes.split()),
    ):
        assert kinds(text, "tokenizer/vocab.txt") == []


@pytest.mark.parametrize(
    "text",
    [
        "api_key: Zk39dkf02Kdls0fKQ2",
        'AWS_SECRET_ACCESS_KEY="Zk39dkf02Kdls0fKQ2/dk3+dk"',
        "db.password = 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        '{"storage_options": {"client_secret": "Zk39dkf02Kdls0fKQ2"}}',
    ],
)
def test_random_values_behind_telling_names_are_found(text: str) -> None:
    assert any(kind.startswith("value of ") for kind in kinds(text))
    if text.startswith("{"):
        assert any(
            kind.startswith("value of ")
            for kind in kinds(text, "tokenizer/tokenizer_config.json")
        )


@pytest.mark.parametrize(
    "text",
    [
        "pad_token: <|endoftext|>",
        "eos_token_id: 100257",
        "token: sha256:9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0",
        "secret: correct-horse-battery-staple",
        "the password: ask your administrator",
        "https://user:password@example.org, https://user:<token>@example.org, https://u:${PASS}@example.org",
        "task-id sk-learn, risk-averse-people-with-long-names, hf_hub_download, hf_transfer_is_enabled_by_default",
        "AKIA, AKIAI, AKIAIOSFODNN7 EXAMPLE; eyJ, xoxb, -----BEGIN PUBLIC KEY-----",
        "sha256 9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0",
    ],
)
def test_what_only_looks_alike_is_not(text: str) -> None:
    assert kinds(text) == []


@given(st.text(st.characters(codec="ascii", exclude_characters="/?:@=&"), max_size=200))
def test_prose_without_shapes_is_left_alone_and_nothing_crashes(text: str) -> None:
    if not any(
        hint in text
        for hint in ("_", "-", "AIza", "AKIA", "ASIA", "ABIA", "ACCA", "eyJ", "ya29")
    ):
        assert kinds(text) == []
    assert isinstance(kinds(text, "tokenizer/x.json"), list)


def test_values_of_this_process_are_found_and_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE_KEY", "quite-ordinary-words")
    resolve_options({"secret": {"env": "LAKE_KEY"}})
    assert kinds("it is quite-ordinary-words here") == [
        "a secret that this process uses"
    ]
    environment = {
        "DB_PASSWORD": 'wo"rds only',
        "TOKENIZERS_PARALLELISM": "the lake is calm",
        "SSH_KEY_PATH": "/home/somebody/key",
        "DATABASE_URL": "postgres://me:hunter2hunter2@db/x",
        "API_TOKEN": "short",
    }
    assert kinds('x wo"rds only y', environment=environment) == [
        "the value of the environment variable DB_PASSWORD"
    ]
    assert kinds('{"a": "wo\\"rds only"}', environment=environment)
    assert kinds("hunter2hunter2", environment=environment) == [
        "the value of the environment variable DATABASE_URL"
    ]
    assert (
        kinds("the lake is calm, short, /home/somebody/key", environment=environment)
        == []
    )
    assert "words" not in repr(Detector(environment))


def build(root: Path, tokenizer: Path, name: str, text: str) -> Path:
    """Build a version of one file, called `name`, with one text; return the store."""
    (root / "pages").mkdir(parents=True)
    (root / "pages" / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    config = settings(root, tokenizer)
    build_dataset(config | {"datasets": config["datasets"][1:]}, workers=1)
    return root / "store"


def test_secrets_in_texts_refuse_the_push(
    server: HubServer, tmp_path: Path, tokenizer_dir: Path
) -> None:
    """In the name of an input, which the manifest and the ledger hold, and in a
    tokenizer's chat template.
    """
    token, key = PLANTED["Hugging Face token"], PLANTED["Google API key"]
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_dir, tokenizer)
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": f"{{# {key} #}}"})
    )
    store = build(tmp_path, tokenizer, token, "A lake holds water.")
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="nothing was pushed") as refused:
            push_to_hub(store, REPO, name="small", dry_run=dry_run)
        found = {(path, kind) for path, _, kind in refused.value.details["findings"]}
        assert found == {
            ("manifest.json", "Hugging Face token"),
            ("ledger/00000.json", "Hugging Face token"),
            ("tokenizer/tokenizer_config.json", "Google API key"),
        }
        for secret in (token, key):
            assert secret not in str(refused.value) + json.dumps(refused.value.details)
    assert not server.repos and not server.lfs


def test_secrets_in_rows_are_told_or_refused(
    store: Path, server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["push", "small", "--repo", REPO, "--store", str(store)]
    assert main([*command, "--strict"]) == 2
    assert not server.repos
    refused = capsys.readouterr().err
    assert main(command) == 0
    told = capsys.readouterr()
    assert "warning: " in told.err and told.out.startswith("small v1 is at ")
    for text in (refused, told.err):
        assert (
            "data/" in text
            and "GitHub token" in text
            and PLANTED["GitHub token"] not in text
        )


def test_a_push_says_nothing_of_rows_that_it_was_told_not_to_look_at(
    store: Path, server: HubServer
) -> None:
    report = push_to_hub(store, REPO, name="small", scan_data=0, strict=True)
    assert report.findings == () and report.scanned_rows == 0


def test_parquet_metadata_is_searched(
    store: Path, server: HubServer, tmp_path: Path
) -> None:
    copy = copy_store(store, tmp_path / "store")
    manifest = Catalog(open_store(copy)).manifest("small", 1)
    shard, *others = manifest.files
    path = copy / "small" / "v1" / shard.path
    table = pq.read_table(path)
    secret = PLANTED["AWS access key"]
    with HashingFile(path) as sink:
        pq.write_table(
            table.replace_schema_metadata({"written by": f"me, {secret}"}), sink
        )
    files = (replace(shard, bytes=sink.bytes, sha256=sink.sha256), *others)
    (copy / "small" / "v1" / "manifest.json").write_bytes(
        replace(manifest, files=files).to_bytes()
    )
    with pytest.raises(
        ConfigError,
        match=f"Parquet metadata holds .*\n  {shard.path}, metadata 'written by'",
    ) as no:
        push_to_hub(copy, REPO, name="small@v1")
    assert secret not in str(no.value)
    assert not server.repos


def test_the_allow_list() -> None:
    kept = [
        "manifest.json",
        "README.md",
        "config.yaml",
        "tokenizer/code/tokenizer.json",
        "ledger/00001.json",
    ]
    kept.append("data/train-00000-00.parquet")
    left = [
        "claim.json",
        "runs/x.json",
        "quarantine/00001.parquet",
        ".env",
        "data/.env",
        "ledger/x.json",
        "data",
    ]
    assert [path for path in kept + left if is_published(path)] == kept


def test_the_command(
    store: Path,
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", str(store))
    command = ["push", "small@v1", "--repo", REPO, "--scan-data", "0"]
    assert main([*command, "--dry-run"]) == 0
    assert "(private, main), which it would create, as v1: " in capsys.readouterr().out
    assert main([*command, "--json", "--message", "the first"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["tag"], report["private"]) == (
        "pushed",
        "v1",
        True,
    )
    assert server.repos[REPO].messages[report["commit"]] == "the first"
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("already, as v1; nothing was sent\n")
    assert main([*command, "--token-env", "NOT_SET"]) == 2
    monkeypatch.setenv("OTHER", "hf_other_token_0123456789")
    assert main([*command, "--token-env", "OTHER"]) == 2
    assert main([*command[:-1], "-1"]) == 2
    assert "0123456789" not in capsys.readouterr().err
