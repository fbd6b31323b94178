"""A slow core on a machine whose cores are all equal, where the host allows one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from partitioner.errors import DeviceError
from partitioner.runtime.cgroup import quota


@contextmanager
def quota_or_skip(share: float, **options: float) -> Iterator[str]:
    """`quota`; the test is skipped with the reason where the host allows none."""
    with ExitStack() as stack:
        try:
            group = stack.enter_context(quota(share, **options))
        except DeviceError as error:
            pytest.skip(str(error))
        yield group
