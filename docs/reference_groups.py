"""Pages of the reference of Python, and the public names on each.

Names that :data:`GROUPS` lists come in that order. The other public names follow on the
page that lists the package that defines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Group:
    """Page of the reference."""

    title: str
    """Title of the page."""

    about: str
    """Text under the title, in Markdown."""

    names: tuple[str, ...] = ()
    """Names of `tokenlake`, in the order of the page."""

    packages: tuple[str, ...] = ()
    """Packages whose further public names follow, in the order of their list."""


GROUPS: Final = {
    "loading": Group(
        title="Open and load",
        about=(
            "Open a version of a dataset and read it as batches. The guide is "
            "[Training](../training.md)."
        ),
        names=(
            "open",
            "Dataset",
            "DataLoader",
            "explain",
            "LoaderMetrics",
            "MetricsExport",
            "Metric",
        ),
    ),
    "batches": Group(
        title="Shapes of batches",
        about=(
            "Options of [`DataLoader`](loading.md#DataLoader): padding, layout, "
            "balance and length of rows. The guides are [Padding](../padding.md) "
            "and [Layouts](../training.md#layouts)."
        ),
        names=("BatchPadding", "BatchLayout", "BatchBalance", "LengthCurriculum"),
    ),
    "mixing": Group(
        title="Mix",
        about="Combine datasets by weights. The guide is [mixing.md](../mixing.md).",
        names=("Mixture", "WeightScheduler"),
    ),
    "frameworks": Group(
        title="Other frameworks",
        about=(
            "The same batches in PyTorch, Grain and Hugging Face's `datasets`, and "
            "the state of a loader in Orbax checkpoints. The guide for PyTorch is "
            "[howto/pytorch.md](../howto/pytorch.md)."
        ),
        names=(
            "torch_dataset",
            "torch_rows",
            "grain_dataset",
            "grain_source",
            "hf_dataset",
            "LoaderSave",
            "LoaderRestore",
        ),
    ),
    "building": Group(
        title="Build",
        about=(
            "Plan and build versions of datasets. The guide is "
            "[building.md](../building.md)."
        ),
        names=(
            "build_dataset",
            "import_tokens",
            "BuildResult",
            "plan",
            "load_config",
            "inspect",
            "DatasetIntrospector",
            "clean_dataset",
            "tokenize_and_save",
            "pretokenize",
            "WriteStats",
        ),
    ),
    "configurations": Group(
        title="Configurations",
        about=(
            "Models of configurations. [All keys](keys.md) explains each key; a "
            "section may be given as a mapping."
        ),
        names=("PipelineConfig", "DatasetConfig"),
        packages=("tokenlake.config",),
    ),
    "stores": Group(
        title="Store",
        about=(
            "List, compare, verify, repair, remove, export and query versions. "
            "Functions about one version first take its place, as "
            '[`open`](loading.md#open) does: `"artifacts/books@v3"`, or the store '
            'with `name="books@v3"`. Functions about a whole store take the store '
            "first."
        ),
        names=(
            "Catalog",
            "Manifest",
            "tag",
            "diff",
            "verify",
            "VerifyReport",
            "repair",
            "RepairReport",
            "gc",
            "remove_version",
            "export_version",
            "verify_export",
            "ExportReport",
            "push_to_hub",
            "PushReport",
            "report",
            "report_store",
            "StoreReport",
            "sql",
        ),
    ),
    "training": Group(
        title="Train",
        about=(
            "The included trainer, and its parts in `tokenlake.trainer`. The guide "
            "is [trainer.md](../trainer.md)."
        ),
        names=(
            "Trainer",
            "TrainingConfig",
            "load_training_config",
            "TrainingMetrics",
            "Callback",
        ),
        packages=("tokenlake.runtime.trainer",),
    ),
    "data_pipeline": Group(
        title="Data pipeline",
        about=(
            "`tokenlake.data_pipeline`: batches for PyTorch from one YAML file, "
            "with results in place of exceptions. The guide is "
            "[data_module.md](../data_module.md)."
        ),
        names=("DataPipeline",),
        packages=(
            "tokenlake.data_pipeline",
            "tokenlake.base.result",
            "tokenlake.etl.introspection",
        ),
    ),
    "rows": Group(
        title="Row by row",
        about=(
            "Sources, stages, loaders and writers that work on rows as dicts, in "
            "this process. These names are also those of EasyDeL's data package "
            "(`tokenlake.easydel`)."
        ),
        names=("create_source", "Pipeline", "create_pipeline"),
        packages=("tokenlake.rowwise",),
    ),
    "transforms": Group(
        title="Transforms",
        about=(
            "Functions of rows: fields, filters, chats, prompts and the rows of "
            "trainers. [texts.md](../texts.md) explains them as keys of a "
            "configuration."
        ),
        packages=("tokenlake.etl.text",),
    ),
    "packing": Group(
        title="Tokenize and pack",
        about="Tokenizers and packers for token ids in this process.",
        packages=("tokenlake.etl.tokenizers", "tokenlake.etl.packing"),
    ),
    "caches": Group(
        title="Caches",
        about="Caches of objects in memory and on disk.",
        packages=("tokenlake.base.cache",),
    ),
    "errors": Group(
        title="Errors",
        about=(
            "Every error that Tokenlake raises on purpose. They are in "
            "`tokenlake.errors`; the first is also `tokenlake.TokenlakeError`."
        ),
        names=("TokenlakeError",),
    ),
}
"""Name of a page -> the page, in the order of the index."""
