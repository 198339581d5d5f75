"""SFT: resolves `[sft]` as kit.frameworks.rl resolves `[rl]`, for the trainer alone."""

from __future__ import annotations

from kit.frameworks.base import Framework
from kit.frameworks.rl import RoleTable
from kit.schema.rl_and_sft import Sft

framework: Framework = RoleTable(name="sft", empty=Sft)
