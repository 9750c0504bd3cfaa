"""In the wheel the examples are the package `streams._examples`; beside each other they still import by plain names."""

import sys
from pathlib import Path

# At the end: they are scripts first, with names that other modules may have too.
sys.path.append(str(Path(__file__).parent))
