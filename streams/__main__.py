"""`python -m streams`."""

from __future__ import annotations

import sys

from streams.cli import main

if __name__ == "__main__":
    sys.exit(main())
