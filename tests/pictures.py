"""`make pictures RUN=… SWEEP=…`: pictures of two reports for README and docs, in both widths and both colour schemes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from kit import shell
from tests import browser

IMAGES = Path(__file__).parent.parent / "docs" / "images"
# The first screen and the beginning of the second, in CSS pixels.
_HEIGHTS = {1280: 1100, 390: 1500}


def draw(name: str, stem: str, work: Path) -> None:
    """The report of a run or a sweep of the working folder's project, as STEM-WIDTH[-dark].png."""
    html = work / f"{stem}.html"
    shell.run([sys.executable, "-m", "kit", "report", name, "-o", str(html)])
    with browser.Browser(work / f"profile-{stem}") as started:
        for width, height in _HEIGHTS.items():
            for dark in (False, True):
                page = browser.Page(started, html.as_uri(), width=width, height=height, dark=dark)
                page.wait("document.documentElement.dataset.drawn === 'all'")
                page.picture(IMAGES / f"{stem}-{width}{'-dark' if dark else ''}.png", height=height)


def main(run: str, sweep: str) -> None:
    """Draw both reports."""
    if browser.PROGRAM is None:
        raise SystemExit(browser.NEEDED)
    with tempfile.TemporaryDirectory() as work:
        draw(run, "report", Path(work))
        draw(sweep, "report-sweep", Path(work))


if __name__ == "__main__":
    main(*sys.argv[1:])
