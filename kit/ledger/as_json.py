"""A ledger as JSON, for `kit time --json` and the report."""

from __future__ import annotations

from kit.ledger.ledger import Ledger
from kit.schema.cluster import Price


def as_dict(one: Ledger, price: Price | None) -> dict[str, object]:
    """A ledger as a JSON table: seconds, rank-seconds, and shares between 0 and 1."""
    return {
        "run": one.run_id,
        "live": one.live,
        "detail": one.detail,
        "wall_s": round(one.wall, 3),
        "ranks": one.ranks,
        "total_rank_s": round(one.total, 3),
        "accounts_rank_s": {str(account): round(value, 3) for account, value in one.accounts.items()},
        "by_attempt": {str(key): {str(a): round(v, 3) for a, v in of.items()} for key, of in one.by("attempt").items()},
        "by_node": {str(key): {str(a): round(v, 3) for a, v in of.items()} for key, of in one.by("node").items()},
        "ettr": round(one.ettr, 6),
        "scheduling_goodput": round(one.scheduling_goodput, 6),
        "runtime_goodput": round(one.runtime_goodput, 6),
        "goodput": round(one.goodput, 6),
        "mfu": one.mfu,
        "gpu_hours": round(one.gpu_seconds / 3600, 6),
        "price": price.model_dump() if price else None,
        "cost": round(one.cost(price.gpu_hour), 6) if price else None,
        "notes": list(one.notes),
    }
