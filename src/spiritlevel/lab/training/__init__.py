"""Training for the demo and the studies: one plain loop, and many small networks at once."""

from spiritlevel.lab.training.augmentation import crop_and_flip
from spiritlevel.lab.training.ensemble import train_ensemble
from spiritlevel.lab.training.evaluation import Evaluation, evaluate
from spiritlevel.lab.training.loop import EpochRecord, TrainingRecord, train
from spiritlevel.lab.training.schedules import SCHEDULES, averaging, constant, cosine, linear
from spiritlevel.lab.training.stopping import GradientRule, LossTarget, StopRule

__all__ = [
    "SCHEDULES",
    "EpochRecord",
    "Evaluation",
    "GradientRule",
    "LossTarget",
    "StopRule",
    "TrainingRecord",
    "averaging",
    "constant",
    "cosine",
    "crop_and_flip",
    "evaluate",
    "linear",
    "train",
    "train_ensemble",
]
