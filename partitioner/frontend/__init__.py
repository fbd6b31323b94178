"""From a model to an op graph: `load` imports and normalizes it, `group` finds its ops."""

from __future__ import annotations

from partitioner.frontend.group import Grouped, group
from partitioner.frontend.load import Imported, load

__all__ = ["Grouped", "Imported", "group", "load"]
