"""`spark-ext control`: the group with all of its commands, which add themselves to it when they are imported."""

from __future__ import annotations

from spark_ext.commands import control_look, control_send
from spark_ext.commands.control_group import app

__all__ = ["app", "control_look", "control_send"]
