"""Published times of whole networks as simulation input: shared among ops, marked as guesses.

A publication says what a network takes on so many cores of a cluster, not what each op takes. Its
time is shared among ops as the roofline guess shares its own (`cost.estimate`), so that the whole
network takes what was published and cuts are as good as the guess.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from partitioner.cost import options_of
from partitioner.cost.estimate import estimate_profile
from partitioner.errors import ProfileError
from partitioner.graph import OpGraph
from partitioner.machine import Device, Machine
from partitioner.profiling.table import Measurement, OpKey, Origin, ProfileTable

__all__ = ["PublishedTimes"]


@dataclass(frozen=True, slots=True)
class PublishedTimes:
    """What a publication says of a machine.

    Attributes
    ----------
    machine : str
        Which one.
    source, conditions : str
        Where the times are from, and how they were taken.
    network_s : mapping of str to mapping of (str, int) to float
        By network, then by device and number of its cores: seconds of the whole network.
    """

    machine: str
    source: str
    conditions: str
    network_s: Mapping[str, Mapping[tuple[str, int], float]]

    @staticmethod
    def load(path: str | Path) -> PublishedTimes:
        """Read a file such as ``profiles/rk3399/published.toml``.

        Raises
        ------
        ProfileError
            If it cannot be read or is no such file.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            networks = {
                str(network): {
                    (str(device), int(cores)): _seconds(ms)
                    for device, times in clusters.items()
                    for cores, ms in times.items()
                }
                for network, clusters in data["network"].items()
            }
            return PublishedTimes(
                str(data["machine"]), str(data["source"]), str(data["conditions"]), networks
            )
        except OSError as error:
            raise ProfileError(f"{path}: cannot read published times: {error.strerror}") from error
        except (
            tomllib.TOMLDecodeError,
            UnicodeDecodeError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise ProfileError(
                f"{path}: not published times ({error!r}); needed are machine, source, conditions "
                "and a table [network.NAME] with milliseconds by device and number of cores"
            ) from error

    def time_s(self, network: str, device: str, cores: int) -> float:
        """Seconds of a network on so many cores; between published numbers of cores, a power law.

        Raises
        ------
        ProfileError
            If nothing is published of the network or the device, or for fewer and for more cores.
        """
        known = {
            k: seconds
            for (name, k), seconds in self.network_s.get(network, {}).items()
            if name == device
        }
        if not known or not min(known) <= cores <= max(known):
            shown = ", ".join(f"{d} x{k}" for d, k in self.network_s.get(network, {})) or "nothing"
            raise ProfileError(
                f"{self.machine}: no time of {network!r} on {cores} cores of {device!r} follows "
                f"from what is published of it ({shown}; networks: {', '.join(self.network_s)})"
            )
        counts = sorted(known)
        logs = np.interp(math.log(cores), np.log(counts), [math.log(known[k]) for k in counts])
        return math.exp(float(logs))

    def profile(
        self, network: str, graph: OpGraph, machine: Machine, origin: Origin
    ) -> ProfileTable:
        """A table whose ops add up to the published times.

        Parameters
        ----------
        network : str
            Name in the publication.
        graph : OpGraph
            The model's ops.
        machine : Machine
            Its devices are named as the publication's.
        origin : Origin
            For the table.

        Returns
        -------
        ProfileTable
            With `estimated` set, zero runs in each row, and a note that says where it is from.

        Raises
        ------
        ProfileError
            If a time is not published and lies between none that are.
        """
        guess = estimate_profile(graph, options_of(machine), origin)
        rows: dict[OpKey, Measurement] = {}
        for option in options_of(machine):
            whole_s = self.time_s(network, option.name, option.threads)
            rows |= _shared(guess, graph, option, whole_s)
        note = (
            f"op times are guesses that add up to published ones of whole networks: {self.source} "
            f"({self.conditions})"
        )
        return replace(guess, ops=rows, notes=(*guess.notes, note))


def _seconds(ms: float) -> float:
    if not 0 < ms < math.inf:
        raise ValueError(f"a time of {ms} ms")
    return float(ms) / 1e3


def _shared(
    guess: ProfileTable, graph: OpGraph, option: Device, whole_s: float
) -> dict[OpKey, Measurement]:
    """Rows of an option, scaled so that all ops of the graph take `whole_s`."""
    keys = [OpKey(op.signature, option.name, option.threads) for op in graph.ops]
    factor = whole_s / sum(guess.time_s(key) for key in keys)
    return {key: Measurement(guess.time_s(key) * factor) for key in keys}
