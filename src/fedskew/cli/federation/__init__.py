"""The commands of a federation across organizations."""

from fedskew.cli.federation import admin, approval, service, training  # they register their commands
from fedskew.cli.federation.group import federation

__all__ = ["admin", "approval", "federation", "service", "training"]
