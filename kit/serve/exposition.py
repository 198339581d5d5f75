"""`/metrics` in OpenMetrics (https://prometheus.io/docs/specs/om/open_metrics_spec/), for a Prometheus on this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from kit.hosts.status import Status
from kit.record import metrics, run_facts
from kit.serve.current_runs import Board

CONTENT_TYPE = CONTENT_TYPE_LATEST
# A run that has ended is still told of for so long: a scraper that looks once a minute sees its last word.
_ENDED_S = 600.0
_REPORTED = {
    "loss": "Loss of the newest step",
    "eval_loss": "Validation loss, as last reported",
    "tokens_per_second": "Tokens per second over all ranks, as last reported",
    "images_per_second": "Images per second over all ranks, as last reported",
    "mfu": "Model FLOPs utilisation, as last reported",
}


def text(board: Board) -> bytes:
    """The present metrics of all runs, as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunsCollector(board))
    made: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return made


class _RunsCollector(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        every = list(self._board.runs().values())
        states = GaugeMetricFamily("kit_runs", "Runs by cluster and state", labels=["cluster", "state"])
        for (cluster, state), number in sorted(Counter((one.facts.cluster, one.state) for one in every).items()):
            states.add_metric([cluster, state], number)
        yield states
        yield from _of_each([one for one in every if one.active or _ended_lately(one)])


def _ended_lately(run: Status) -> bool:
    try:
        return time.time() - (run.run_dir / "state" / "events.jsonl").stat().st_mtime < _ENDED_S
    except OSError:
        return False


def _of_each(runs: list[Status]) -> Iterable[Metric]:
    info = InfoMetricFamily("kit_run", "What a run is", labels=["run"])
    restarts = CounterMetricFamily("kit_run_restarts", "Times that Slurm started the run again", labels=["run"])
    stalls = CounterMetricFamily("kit_run_stalls", "Times that its ranks stood still", labels=["run"])
    step = GaugeMetricFamily("kit_run_step", "Newest step reported", labels=["run"])
    code = GaugeMetricFamily("kit_run_exit_code", "Exit code of a run that has ended", labels=["run"])
    reported = {name: GaugeMetricFamily(f"kit_run_{name}", says, labels=["run"]) for name, says in _REPORTED.items()}
    for run in runs:
        made, name = run.facts, run.run_dir.name
        about = {"job": made.job_name, "cluster": made.cluster, "slurm_job": str(run.job_id or ""), "state": run.state}
        info.add_metric([name], {**about, "image": made.image_name or "", "image_digest": made.image_digest})
        restarts.add_metric([name], run.restarts)
        stalls.add_metric([name], sum(event["event"] == "stall" for event in run_facts.events(run.run_dir)))
        if run.exit_code is not None:
            code.add_metric([name], run.exit_code)
        latest = metrics.latest(run.run_dir)
        if latest is not None:
            step.add_metric([name], latest.step)
            for key, of in reported.items():
                if key in latest.values:
                    of.add_metric([name], latest.values[key])
    yield from (info, restarts, stalls, step, code, *reported.values())
