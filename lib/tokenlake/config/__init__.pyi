"""The names of this package and where each is defined: `__init__.py` reads this list, too."""

from tokenlake.config.dataset import DatasetConfig as DatasetConfig
from tokenlake.config.load import load_config as load_config
from tokenlake.config.pipeline import MixStageConfig as MixStageConfig
from tokenlake.config.pipeline import PipelineConfig as PipelineConfig
from tokenlake.config.pipeline import WeightSchedulePoint as WeightSchedulePoint
from tokenlake.config.pipeline import dump_yaml as dump_yaml
from tokenlake.config.refusals import REFUSALS as REFUSALS
from tokenlake.config.resolve import first_steps as first_steps
from tokenlake.config.resolve import last_step as last_step
from tokenlake.config.resolve import source_identity as source_identity
from tokenlake.config.resolved import ResolvedChat as ResolvedChat
from tokenlake.config.resolved import ResolvedPack as ResolvedPack
from tokenlake.config.resolved import ResolvedTokenizer as ResolvedTokenizer
from tokenlake.config.stages import CacheStageConfig as CacheStageConfig
from tokenlake.config.stages import LoadStageConfig as LoadStageConfig
from tokenlake.config.stages import ObservabilityConfig as ObservabilityConfig
from tokenlake.config.stages import PackStageConfig as PackStageConfig
from tokenlake.config.stages import RayConfig as RayConfig
from tokenlake.config.stages import SaveStageConfig as SaveStageConfig
from tokenlake.config.stages import SourceStageConfig as SourceStageConfig
from tokenlake.config.stages import TokenizerConfig as TokenizerConfig
from tokenlake.config.stages import TokenizeStageConfig as TokenizeStageConfig
from tokenlake.config.texts import PromptConfig as PromptConfig
