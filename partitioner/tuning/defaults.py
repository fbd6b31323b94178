"""Which records are used where nobody says: the user's own, and the shipped ones for the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from partitioner.errors import TuningError
from partitioner.files import cache_home
from partitioner.tuning.records import Records

__all__ = ["default_records", "user_folder"]


def user_folder() -> Path:
    """Where tuning keeps records if no other folder is named."""
    return cache_home() / "tuning"


def default_records() -> Records:
    """The user's records, and the shipped ones for the ops that those lack.

    Records of the user's that are of no use here are left out, and a note says so: what was
    tuned for another version must not keep every command from working.
    """
    shipped, folder = Records.shipped(), user_folder()
    if not folder.is_dir():
        return shipped
    try:
        return Records.load(folder).over(shipped)
    except TuningError as error:
        return replace(shipped, notes=(*shipped.notes, f"left out: {error}"))
