"""The modules that run beside ranks, on the path.

These tests import nothing of the kit: scripts/own_python.sh runs them on Python 3.8, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

NODE = Path(__file__).parents[3] / "templates" / "kit_node"
if str(NODE) not in sys.path:
    sys.path.insert(0, str(NODE))
