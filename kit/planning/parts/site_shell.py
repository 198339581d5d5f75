"""Functions that a login shell of the site defines, for lines that use them."""

from __future__ import annotations

from kit.planning import site_shell
from kit.planning.parts.part import Code

CODE = Code(asked_by=site_shell.asked_by)
