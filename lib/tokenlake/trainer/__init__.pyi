"""The names of this package and where each is defined: `__init__.py` reads this list, too."""

from tokenlake.trainer.callbacks import Callback as Callback
from tokenlake.trainer.config import TrainingConfig as TrainingConfig
from tokenlake.trainer.config import load_training_config as load_training_config
from tokenlake.trainer.losses import Sums as Sums
from tokenlake.trainer.losses import cross_entropy as cross_entropy
from tokenlake.trainer.losses import focal as focal
from tokenlake.trainer.losses import language_model as language_model
from tokenlake.trainer.losses import over_logits as over_logits
from tokenlake.trainer.losses import targets_of as targets_of
from tokenlake.trainer.measurements import TrainingMetrics as TrainingMetrics
from tokenlake.trainer.mesh import batch_sharding as batch_sharding
from tokenlake.trainer.mesh import make_mesh as make_mesh
from tokenlake.trainer.optimizer import make_optimizer as make_optimizer
from tokenlake.trainer.optimizer import make_schedule as make_schedule
from tokenlake.trainer.preference_losses import dpo as dpo
from tokenlake.trainer.preference_losses import kto as kto
from tokenlake.trainer.preference_losses import orpo as orpo
from tokenlake.trainer.trainer import Trainer as Trainer
