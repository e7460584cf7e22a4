"""Loading and dumping: YAML files, mappings, overrides, errors with lines, and the
round trip.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenlake import load_config
from tokenlake.base import SYNONYMS, parse_duration, parse_size
from tokenlake.config import dump_yaml
from tokenlake.errors import ConfigError

Write = Callable[..., Path]

GOOD = """\
datasets:
  - name: code
    data_files: data/*.jsonl
    tokenizer: gpt2
  - data_files: [a.parquet, b.parquet]
pack: {enabled: true, seq_length: 512}
mix:
save: {max_shard_size: 1.5 GB, hub_token: {env: HF_TOKEN}}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "llama2-512.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def refusal(source: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(source, overrides)
    return str(error.value)


def test_a_file_a_mapping_and_a_model_give_the_same_configuration(write: Write) -> None:
    config = load_config(write("\ufeff" + GOOD))
    assert config.name == "llama2-512"
    assert [dataset.name for dataset in config.datasets] == ["code", "dataset_1"]
    assert config.save.max_shard_size == 1610612736
    assert load_config(str(write(GOOD))) == config
    assert load_config(config) is config
    assert load_config(config.model_dump()) == config
    assert load_config(dict(config)) == config


def test_the_stem_is_the_name_only_where_it_is_a_name_and_none_is_given(
    write: Write,
) -> None:
    assert load_config(write(GOOD, "My Config.yaml")).name is None
    assert load_config(write("name: mine\n" + GOOD)).name == "mine"
    anchors = "datasets: [&base {data_files: a, tokenizer: gpt2, name: a}, {<<: *base, name: b}]\n"
    both = load_config(write(anchors)).datasets
    assert [(each.name, each.tokenizer) for each in both] == [
        ("a", "gpt2"),
        ("b", "gpt2"),
    ]


def test_every_problem_is_listed_with_its_line(write: Write) -> None:
    text = """\
datasets:
  - data_files: data/*.jsonl
    tokenizr: gpt2
    tokenizer: {name_or_path: gpt2, max_length: -1}
pack:
  strategy: greddy
save: {format: Parquet, max_shard_size: 5 zb}
mxi: {}
"""
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}: 6 problems in the configuration\n")
    for part in (
        "datasets.0.tokenizr (line 3): unknown key; did you mean 'tokenizer'?",
        "datasets.0.tokenizer.max_length (line 4): got -1, must be greater than 0",
        "pack.strategy (line 6): got 'greddy', must be 'greedy', 'pool', 'first_fit' or 'best_fit'; did",
        "save.format (line 7): got 'Parquet'",
        "save.max_shard_size (line 7): got '5 zb'",
        "mxi (line 8): unknown key; did you mean 'mix'?",
    ):
        assert part in message
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert len(error.value.details["problems"]) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got nothing"),
        ("- a\n- b\n", "must be a mapping"),
        ("name: a\nname: b\n", ":2: key 'name' is already on line 1"),
        ("pack: {", "not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: &x [*x]", "contains itself"),
        ("name: a\n---\nname: b\n", "not YAML"),
    ],
)
def test_bad_yaml_is_refused_with_its_place(
    write: Write, text: str, words: str
) -> None:
    path = write(text)
    message = refusal(path)
    assert message.startswith(str(path))
    assert words in message


def test_a_missing_file_names_a_near_one(write: Write, tmp_path: Path) -> None:
    write(GOOD, "llama2-2048.yaml")
    assert "did you mean" in refusal(tmp_path / "llama-2048.yaml")
    assert "llama2-2048.yaml" in refusal(tmp_path / "llama-2048.yaml")
    assert "nor a folder" in refusal(tmp_path / "nowhere" / "x.yaml")
    assert "this is a folder" in refusal(tmp_path)
    assert "UTF-8" in refusal(write(b"name: \xff\n"))  # type: ignore[arg-type]


def test_files_and_overrides_hold_no_literal_secrets(write: Write) -> None:
    text = GOOD.replace("{env: HF_TOKEN}", "hf_SuperSecret")
    message = refusal(write(text))
    assert "save.hub_token (line 8): got a literal secret" in message
    assert "{env: NAME}" in message
    message = refusal(write(GOOD), "save.hub_token=hf_SuperSecret")
    assert "SuperSecret" not in message
    storage = GOOD.replace(
        "tokenizer: gpt2", "storage_options: {secret: hf_SuperSecret}"
    )
    message = refusal(write(storage))
    assert "option 'secret'" in message
    assert "SuperSecret" not in message
    assert (
        load_config(write(GOOD), ["save.hub_token={block: hub}"]).save.hub_token
        is not None
    )


def test_overrides_are_yaml_values_at_dotted_keys(write: Write) -> None:
    changed = load_config(
        write(GOOD),
        [
            "pack.seq_length=1024",
            "datasets.code.type=jsonl",
            "datasets.dataset_1.tokenizer=other",
            "datasets.0.tokenizer.max_length=77",
            "datasets.1.splits={train: 0.9, test: 0.1}",
            "mix.weights={code: 0.5, dataset_1: 0.5}",
            "save.max_shard_size=100kb",
        ],
    )
    assert changed.pack.seq_length == 1024
    assert changed.datasets[0].type == "jsonl"
    assert changed.datasets[0].tokenizer.model_dump()["name_or_path"] == "gpt2"  # type: ignore[union-attr]
    assert changed.datasets[0].tokenizer.max_length == 77  # type: ignore[union-attr]
    assert changed.datasets[1].tokenizer == "other"
    assert changed.datasets[1].splits == {"train": 0.9, "test": 0.1}
    assert changed.save.max_shard_size == 102400


def test_overrides_change_neither_the_callers_mapping_nor_the_model() -> None:
    data = {"datasets": [{"data_files": "x"}], "pack": {"seq_length": 5}}
    config = load_config(data, ["pack.seq_length=7", "datasets.0.data_files=[y]"])
    assert (config.pack.seq_length, config.datasets[0].data_files) == (7, ("y",))
    assert data == {"datasets": [{"data_files": "x"}], "pack": {"seq_length": 5}}
    again = load_config(config, ["pack.seq_length=9"])
    assert (again.pack.seq_length, config.pack.seq_length) == (9, 7)
    assert again.datasets == config.datasets


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pack", "must be key=value"),
        ("=5", "must be key=value"),
        ("pack..x=5", "must be key=value"),
        (
            "pack.seq_lenght=5",
            "pack.seq_lenght (override): unknown key; did you mean 'seq_length'?",
        ),
        ("pakc.seq_length=5", "pakc: unknown key; did you mean 'pack'?"),
        ("pack.seq_length=x", "pack.seq_length (override): got 'x'"),
        ("pack.seq_length.x=5", "leads into a value without keys"),
        ("datasets.2.name=x", "no entry '2'"),
        ("datasets.cdoe.name=x", "did you mean 'code'?"),
        ("pack.seq_length=[", "not YAML"),
    ],
)
def test_a_wrong_override_says_how(write: Write, override: str, words: str) -> None:
    assert words in refusal(write(GOOD), override)


# Text that people write; YAML's own escapes are what is tested, not control characters
# in paths.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
TOKENIZERS = TEXTS | st.fixed_dictionaries(
    {"name_or_path": TEXTS},
    optional={
        "truncation": st.none() | st.booleans(),
        "max_length": st.integers(1, 99),
    },
)
DATASETS = st.fixed_dictionaries(
    {"data_files": TEXTS | st.lists(TEXTS, min_size=1, max_size=3)},
    optional={
        "type": st.sampled_from([None, "jsonl", "parquet", "csv", "txt"]),
        "tokenizer": TOKENIZERS,
        "content_field": TEXTS,
        "splits": st.sampled_from([None, {"train": 0.999, "validation": 0.001}]),
        "max_bad_fraction": st.none() | st.floats(0.0, 1.0),
        "storage_options": st.just(
            {"secret": "hf_Super", "key": {"env": "K"}, "anon": True}
        ),
        "format_fields": st.just({"no": "yes", "1e5": "~"}),
        "format_callback": st.just(json.dumps),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"datasets": st.lists(DATASETS, min_size=1, max_size=3)},
    optional={
        "seed": st.none() | st.integers(0, 2**63 - 1),
        "mix": st.fixed_dictionaries(
            {"weights": st.just({"dataset_0": 1}), "epochs": st.floats(0.1, 9)}
        ),
        "save": st.fixed_dictionaries(
            {
                "max_shard_size": st.integers(1, 2**50) | st.just("1.5 GB"),
                "output_dir": TEXTS,
            },
            optional={"hub_token": st.sampled_from([{"env": "HF"}, {"block": "hub"}])},
        ),
    },
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS)
def test_what_is_dumped_loads_back_equal_but_for_secrets(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    config = load_config(data)
    text = dump_yaml(config)
    assert "hf_Super" not in text
    # A stem that is no name of a dataset.
    path = tmp_path_factory.getbasetemp() / "Dumped.yaml"
    path.write_text(text, "utf-8")
    if "**********" in text:
        assert "removed on saving" in refusal(path)
        return
    again = load_config(path)
    assert dump_yaml(again) == text
    # A function comes back as its name.
    assert again == config or "json:dumps" in text


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "MB",
        "5 zb",
        "-1MB",
        "1,5GB",
        "5MBB",
        "1e6",
        "1.MB",
        "٣MB",
        0,
        -5,
        "0",
        "0.0001KB",
        "9999999PB",
        None,
        True,
        1.5,
        ["5MB"],
    ],
)
def test_bad_sizes_are_errors_that_quote_the_value(bad: Any) -> None:
    with pytest.raises(ConfigError, match="size must be") as error:
        parse_size(bad)
    assert repr(bad) in str(error.value)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    number=st.integers(1, 1 << 20),
    power=st.integers(0, 4),
    infix=st.sampled_from(["", "i"]),
    suffix=st.sampled_from(["", "b", "B"]),
    gap=st.sampled_from(["", " "]),
    upper=st.booleans(),
)
def test_units_are_powers_of_1024_however_they_are_spelled(
    number: int, power: int, infix: str, suffix: str, gap: str, upper: bool
) -> None:
    unit = "" if power == 0 else "kmgt"[power - 1] + infix
    text = f"{number}{gap}{unit.upper() if upper else unit}{suffix}"
    assert parse_size(text) == number * 1024**power
    assert (parse_size("1.5 GB"), parse_size("0.3KB"), parse_size(123)) == (
        1610612736,
        307,
        123,
    )


DAY = 86_400
SPANS = {
    "7d": 7 * DAY,
    "12h": 43_200,
    "30m": 1800,
    "90s": 90,
    "2w": 14 * DAY,
    "0": 0,
    "1.5h": 5400,
}


def test_spans() -> None:
    assert {text: parse_duration(text) for text in SPANS} == SPANS
    assert [parse_duration(seconds) for seconds in SPANS.values()] == list(
        SPANS.values()
    )


@pytest.mark.parametrize(
    "wrong",
    ["", "7", "d", "-1d", "7 days", "1e9d", "nan", -1, float("nan"), True, None],
)
def test_what_is_no_span(wrong: object) -> None:
    with pytest.raises(ConfigError, match="span of time"):
        parse_duration(wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("override", "place"),
    [
        (
            "on_bad_record=quarantine",
            "on_bad_record (override): unknown key; did you mean 'source.on_bad_record'?",
        ),
        ("seq_length=512", "did you mean 'pack.seq_length'?"),
        (
            "source.seq_length=512",
            "source.seq_length (override): unknown key; did you mean 'pack.seq_length'?",
        ),
        ("pack.tokenizer=gpt2", "did you mean 'datasets.0.tokenizer'?"),
        ("datasets.0.colour=4", "datasets.0.colour (override): unknown key (known: "),
        (
            "dataset_name=wiki",
            "dataset_name (override): unknown key; did you mean 'name'?",
        ),
        ("context_length=512", "did you mean 'pack.seq_length'?"),
        ("colour=512", "colour (override): unknown key (known: "),
    ],
)
def test_a_key_that_belongs_elsewhere_is_named_with_its_path(
    write: Write, override: str, place: str
) -> None:
    assert place in refusal(write(GOOD), override)


def test_each_name_of_another_tool_stands_for_a_key_that_exists() -> None:
    for name, path in SYNONYMS.items():
        assert f"did you mean {path!r}?" in refusal({"datasets": [], name: 1}), name
