"""bin/ and lib/ of a run folder with the files of all parts: scripts find each other there, which in templates/ they do not."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from kit import render

RUN = Path(tempfile.mkdtemp(prefix="kit-laid-out-"))
BIN, LIB = RUN / "bin", RUN / "lib"
render.write_all(RUN)
atexit.register(shutil.rmtree, RUN, ignore_errors=True)
