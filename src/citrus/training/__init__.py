"""Training: one loop for all methods, run folders, exact resume, and the evaluation that follows."""

from citrus.training.config import TrainConfig, from_dict, override, read_config, to_dict
from citrus.training.evaluation import Evaluation, evaluate, uap_file
from citrus.training.loop import Progress, Trainer
from citrus.training.run import Events, Run, Stopped, environment, load_run, pick_device, train
