"""The sections of a configuration."""

from tokenlake import CacheStageConfig as CacheStageConfig
from tokenlake import DatasetConfig as DatasetConfig
from tokenlake import LoadStageConfig as LoadStageConfig
from tokenlake import MixStageConfig as MixStageConfig
from tokenlake import ObservabilityConfig as ObservabilityConfig
from tokenlake import PackStageConfig as PackStageConfig
from tokenlake import PipelineConfig as PipelineConfig
from tokenlake import RayConfig as RayConfig
from tokenlake import SaveStageConfig as SaveStageConfig
from tokenlake import SourceStageConfig as SourceStageConfig
from tokenlake import TokenizerConfig as TokenizerConfig
from tokenlake import TokenizeStageConfig as TokenizeStageConfig
from tokenlake import WeightSchedulePoint as WeightSchedulePoint
