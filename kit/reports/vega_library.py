"""Vega, Vega-Lite and Vega-Embed as one script, made by vl-convert once and kept in the user's cache."""

from __future__ import annotations

import contextlib
import os
import re
from importlib.metadata import version
from typing import Any

import platformdirs

from kit.errors import ToolError
from kit.files import atomic_write, untrusted_files

_VEGA_LITE = "6.1"


def script() -> str:
    """The script; it sets window.vegaEmbed. ToolError if vl-convert is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise ToolError(
            "kit report draws with Vega-Lite, and vl-convert-python is not installed",
            hint="pip install 'slurm-kit[report]'",
        ) from None
    folder = platformdirs.user_cache_path("kit")
    path = folder / f"vega-{_VEGA_LITE}-{version('vl-convert-python')}.js"
    try:
        return untrusted_files.read_text(path)
    except OSError:
        # vl-convert's types require a snippet, but it is optional. Without one, the script sets window.vegaEmbed.
        bundle: Any = vl_convert.javascript_bundle
        text = str(bundle(vl_version=_VEGA_LITE))
    if re.search("</script|<!--", text, re.IGNORECASE):
        raise ToolError(
            f"vl-convert-python {version('vl-convert-python')}: its script cannot be put into a page",
            hint="pip install --upgrade 'slurm-kit[report]'",
        )
    with contextlib.suppress(OSError):  # without a writable cache, the script is made again each time
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as the index does
        atomic_write.write(path, text, durable=False)
    return text
