"""A ledger as JSON, for `kit time --json` and the report."""

from __future__ import annotations

from kit.ledger.ledger import Ledger
from kit.schema.cluster import Price


def as_dict(ledger: Ledger, price: Price | None) -> dict[str, object]:
    """A ledger as a JSON table: seconds, rank-seconds, and shares between 0 and 1."""
    return {
        "run": ledger.run_id,
        "live": ledger.live,
        "detail": ledger.detail,
        "wall_s": round(ledger.wall, 3),
        "ranks": ledger.ranks,
        "total_rank_s": round(ledger.total, 3),
        "accounts_rank_s": {str(account): round(value, 3) for account, value in ledger.accounts.items()},
        "by_attempt": {
            str(key): {str(a): round(v, 3) for a, v in of.items()} for key, of in ledger.by("attempt").items()
        },
        "by_node": {str(key): {str(a): round(v, 3) for a, v in of.items()} for key, of in ledger.by("node").items()},
        "ettr": round(ledger.ettr, 6),
        "scheduling_goodput": round(ledger.scheduling_goodput, 6),
        "runtime_goodput": round(ledger.runtime_goodput, 6),
        "goodput": round(ledger.goodput, 6),
        "mfu": ledger.mfu,
        "gpu_hours": round(ledger.gpu_seconds / 3600, 6),
        "price": price.model_dump() if price else None,
        "cost": round(ledger.cost(price.gpu_hour), 6) if price else None,
        "notes": list(ledger.notes),
    }
