"""Training: one loop for all methods, run folders, exact resume, and the evaluation that follows."""

from citrus.training.config import TrainConfig as TrainConfig
from citrus.training.config import from_dict as from_dict
from citrus.training.config import override as override
from citrus.training.config import read_config as read_config
from citrus.training.config import to_dict as to_dict
from citrus.training.evaluation import Evaluation as Evaluation
from citrus.training.evaluation import evaluate as evaluate
from citrus.training.loop import Progress as Progress
from citrus.training.loop import Trainer as Trainer
from citrus.training.run import Events as Events
from citrus.training.run import Run as Run
from citrus.training.run import Stopped as Stopped
from citrus.training.run import load_run as load_run
from citrus.training.run import train as train
