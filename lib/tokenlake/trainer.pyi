"""The names of this package and where each is defined: `__init__.py` reads this list, too."""

from tokenlake.runtime.trainer.callbacks import Callback as Callback
from tokenlake.runtime.trainer.config import TrainingConfig as TrainingConfig
from tokenlake.runtime.trainer.config import load_training_config as load_training_config
from tokenlake.runtime.trainer.data import make_loader as make_loader
from tokenlake.runtime.trainer.losses import Sums as Sums
from tokenlake.runtime.trainer.losses import cross_entropy as cross_entropy
from tokenlake.runtime.trainer.losses import focal as focal
from tokenlake.runtime.trainer.losses import language_model as language_model
from tokenlake.runtime.trainer.losses import over_logits as over_logits
from tokenlake.runtime.trainer.losses import targets_of as targets_of
from tokenlake.runtime.trainer.measurements import TrainingMetrics as TrainingMetrics
from tokenlake.runtime.trainer.mesh import batch_sharding as batch_sharding
from tokenlake.runtime.trainer.mesh import make_mesh as make_mesh
from tokenlake.runtime.trainer.optimizer import make_optimizer as make_optimizer
from tokenlake.runtime.trainer.optimizer import make_schedule as make_schedule
from tokenlake.runtime.trainer.preference_losses import dpo as dpo
from tokenlake.runtime.trainer.preference_losses import kto as kto
from tokenlake.runtime.trainer.preference_losses import orpo as orpo
from tokenlake.runtime.trainer.trainer import Trainer as Trainer
