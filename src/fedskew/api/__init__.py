"""The Python API: one function for each command, with the command line's words as keywords."""

from fedskew.api.reading import detect, load, predict, review
from fedskew.api.training import compare, resume, retrain, run, sweep, verify
from fedskew.experiment.configure import configure

__all__ = ["compare", "configure", "detect", "load", "predict", "resume", "retrain", "review", "run", "sweep", "verify"]
