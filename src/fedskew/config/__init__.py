"""The configuration of a run: its schema, its keys, TOML files, and settings on the command line."""

from fedskew.config.overrides import assign, override
from fedskew.config.schema import RunConfig
from fedskew.config.toml import dumps, load
from fedskew.config.validate import from_dict

__all__ = ["RunConfig", "assign", "dumps", "from_dict", "load", "override"]
