"""The public names of Tokenlake and where each is defined: `__init__.py` reads this list, too."""

from tokenlake._version import __version__ as __version__
from tokenlake.config.dataset import DatasetConfig as DatasetConfig
from tokenlake.config.load import load_config as load_config
from tokenlake.config.pipeline import PipelineConfig as PipelineConfig
from tokenlake.data_pipeline.pipeline import DataPipeline as DataPipeline

# The names of the seeds work here, too: `tokenlake.Where` is that of `tokenlake.easydel`.
from tokenlake.easydel import *  # noqa: F403
from tokenlake.errors import TokenlakeError as TokenlakeError
from tokenlake.etl.cleaning import clean_dataset as clean_dataset
from tokenlake.etl.planner import plan_build as plan_build
from tokenlake.etl.runner import BuildResult as BuildResult
from tokenlake.export.manifest import WriteStats as WriteStats
from tokenlake.export.version import export_version as export_version
from tokenlake.inspect.introspector import DatasetIntrospector as DatasetIntrospector
from tokenlake.integrity.findings import RepairReport as RepairReport
from tokenlake.integrity.findings import VerifyReport as VerifyReport
from tokenlake.integrity.repair import repair as repair
from tokenlake.integrity.verify import verify as verify
from tokenlake.loader.dataset import Dataset as Dataset
from tokenlake.loader.dataset import open as open
from tokenlake.loader.grain import grain_dataset as grain_dataset
from tokenlake.loader.grain import grain_source as grain_source
from tokenlake.loader.hf import hf_dataset as hf_dataset
from tokenlake.loader.layout import BatchLayout as BatchLayout
from tokenlake.loader.loader import DataLoader as DataLoader
from tokenlake.loader.metrics import LoaderMetrics as LoaderMetrics
from tokenlake.loader.mixture import Mixture as Mixture
from tokenlake.loader.orbax import LoaderRestore as LoaderRestore
from tokenlake.loader.orbax import LoaderSave as LoaderSave
from tokenlake.loader.padding import BatchPadding as BatchPadding
from tokenlake.loader.torch import torch_dataset as torch_dataset
from tokenlake.loader.torch import torch_rows as torch_rows
from tokenlake.metrics import Metric as Metric
from tokenlake.metrics import MetricsExport as MetricsExport
from tokenlake.mixing.schedule import WeightScheduler as WeightScheduler
from tokenlake.publish.push import PushReport as PushReport
from tokenlake.publish.push import push_to_hub as push_to_hub
from tokenlake.query.report import write_report as write_report
from tokenlake.rowwise.files import create_source as create_source
from tokenlake.rowwise.legacy import build_dataset as build_dataset
from tokenlake.rowwise.pipeline import Pipeline as Pipeline
from tokenlake.rowwise.pipeline import create_pipeline as create_pipeline
from tokenlake.rowwise.tokenize import pretokenize as pretokenize
from tokenlake.rowwise.tokenize import tokenize_and_save as tokenize_and_save
from tokenlake.store.catalog import Catalog as Catalog
from tokenlake.store.diff import diff as diff
from tokenlake.store.gc import gc as gc
from tokenlake.store.manifest import Manifest as Manifest
from tokenlake.store.remove import remove_version as remove_version
from tokenlake.trainer import Callback as Callback
from tokenlake.trainer import Trainer as Trainer
from tokenlake.trainer import TrainingConfig as TrainingConfig
from tokenlake.trainer import TrainingMetrics as TrainingMetrics
from tokenlake.trainer import load_training_config as load_training_config
