from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.plan import Placement
from partitioner.runtime.deploy import dispatch_pattern


def placements(*shares: float) -> list[Placement]:
    return [Placement(f"d{n}", (n,), share) for n, share in enumerate(shares)]


def test_one_replica_takes_all() -> None:
    assert dispatch_pattern(placements(1.0)) == (0,)


def test_equal_replicas_take_turns() -> None:
    assert dispatch_pattern(placements(0.5, 0.5)) == (0, 1)
    assert sorted(dispatch_pattern(placements(1 / 3, 1 / 3, 1 / 3))) == [0, 1, 2]


def test_a_faster_replica_takes_more_spread_out() -> None:
    # Two items in three to one, one to the other: as a block, 0 0 0 0 1 1 would fit as well.
    pattern = dispatch_pattern(placements(2 / 3, 1 / 3))
    counts = Counter(pattern)
    assert counts[0] == 2 * counts[1]
    around = (*pattern, pattern[0])
    assert all(pair != (1, 1) for pair in pairwise(around))


@given(st.lists(st.floats(1.0, 32.0), min_size=1, max_size=4))
def test_no_replica_gets_much_more_than_its_share(speeds: list[float]) -> None:
    shares = [speed / sum(speeds) for speed in speeds]
    pattern = dispatch_pattern(placements(*shares))
    counts = Counter(pattern)
    assert set(counts) == set(range(len(shares)))
    # The period is that of the replica furthest over its share.
    slowdown = max(counts[n] / len(pattern) / share for n, share in enumerate(shares))
    assert slowdown == pytest.approx(1.0, abs=0.3)
