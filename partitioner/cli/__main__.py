"""`python -m partitioner.cli`."""

from __future__ import annotations

import sys

from partitioner.cli import main

sys.exit(main())
