"""Compares two recorded runs. It reads no files and does not ask Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kit.comparison import images, keys, metric_divergence, recorded_run, text_diffs
from kit.comparison.recorded_run import Recorded
from kit.schema.comparison import (
    CodeDifference,
    Comparison,
    FileDifference,
    MetricsDifference,
    Parting,
    ValueDifference,
)


def compare(a: Recorded, b: Recorded) -> Comparison:
    """The differences of two runs, with a concluding sentence."""
    metrics = metric_divergence.between(a.records, b.records)
    both = a.job is not None and b.job is not None
    unknown = [f"{side}: {line}" for side, one in (("A", a), ("B", b)) for line in one.unknown]
    comparison = Comparison(
        conclusion="",
        a=a.run,
        b=b.run,
        outcome=_differences(_outcome(a), _outcome(b)),
        metrics=metrics,
        keys=keys.between(a.job or {}, b.job or {}, a.manifest.set_by, b.manifest.set_by) if both else (),
        code=CodeDifference(
            tree_a=_tree(a), tree_b=_tree(b), commit_a=_commit(a), commit_b=_commit(b), files=_files(a, b)
        ),
        image=images.between(a.image, b.image, a.image_held, b.image_held),
        scripts=text_diffs.between(a.scripts, b.scripts),
        kit=_differences({"kit": a.manifest.versions.get("kit")}, {"kit": b.manifest.versions.get("kit")}),
        cluster=_cluster(a, b),
        nodes=_differences(_nodes(a), _nodes(b)) if a.nodes and b.nodes else (),
        environment=_differences(dict(recorded_run.facts(a)), dict(recorded_run.facts(b))),
        unknown=tuple(unknown),
    )
    return comparison.model_copy(update={"conclusion": conclusion(comparison)})


def conclusion(comparison: Comparison) -> str:
    """One sentence: the differences, and their result."""
    what = differing(comparison)
    results = [_parted(comparison.metrics.parted[0])] if comparison.metrics.parted else []
    if comparison.outcome and comparison.a.state != comparison.b.state:
        results.append(f"A ended {comparison.a.state}, B {comparison.b.state}")
    so = "; ".join(results)
    if not what:
        if not results:
            return f"nothing that is recorded differs{_but(comparison)}"
        return f"nothing that is recorded differs{_but(comparison)}, and yet {so}"
    named = f"{', '.join(what[:-1])} and {what[-1]}" if len(what) > 1 else what[0]
    verb = "differ" if len(what) > 1 or what[0].endswith("s") else "differs"
    return f"{named} {verb}; {so or _no_result(comparison.metrics)}"


def differing(comparison: Comparison) -> list[str]:
    """The kinds of differences, without results.

    Rendered scripts follow from the rest, so they count only if nothing else differs.
    """
    count = len(comparison.keys)
    differences = [
        (count, f"{count} keys" if count > 1 else f"the key {comparison.keys[0].key}" if count else ""),
        (code_differs(comparison.code), _code_words(comparison.code)),
        (comparison.image.a != comparison.image.b, "the image"),
        (len(comparison.kit), "the kit's version"),
        (len(comparison.cluster), "the cluster"),
        (len(comparison.nodes), "the nodes"),
        (len(comparison.environment), "the recorded environment"),
    ]
    kinds = [text for number, text in differences if number]
    return kinds or (["the rendered scripts"] if comparison.scripts else [])


def code_differs(code: CodeDifference) -> bool:
    """Whether the code differs: by the snapshots' hashes, else by the commits. False if neither is recorded for both runs."""
    if code.tree_a and code.tree_b:
        return code.tree_a != code.tree_b
    return bool(code.commit_a and code.commit_b and code.commit_a != code.commit_b)


def _code_words(code: CodeDifference) -> str:
    count = len(code.files)
    return f"{count} files of the code" if count > 1 else "a file of the code" if count else "the code"


def _but(made: Comparison) -> str:
    return ", and not all is recorded" if made.unknown else ""


def _no_result(metrics: MetricsDifference) -> str:
    if not metrics.compared:
        return "no metrics of both to compare"
    return f"no reported number parts in {metrics.compared} steps"


def _parted(one: Parting) -> str:
    return f"{one.metric} diverges at step {one.step}{reporter(one)}, by {one.by:.3g}"


def reporter(one: Parting) -> str:
    """The rank or replica group that reported the metric, if the records name one."""
    said = [
        f" on {noun} {number}"
        for noun, number in (("replica group", one.replica), ("rank", one.rank))
        if number is not None
    ]
    return "".join(said)


def _differences(a: Mapping[str, str | None], b: Mapping[str, str | None]) -> tuple[ValueDifference, ...]:
    """The names whose values differ, in the order of their first appearance."""
    names = dict.fromkeys([*a, *b])
    return tuple(ValueDifference(name=n, a=a.get(n), b=b.get(n)) for n in names if a.get(n) != b.get(n))


def _outcome(one: Recorded) -> dict[str, str | None]:
    run = one.run
    return {
        "state": run.state,
        "exit code": None if run.exit_code is None else str(run.exit_code),
        "verdict": run.verdict,
        "rule": run.rule,
        "last step": None if run.step is None else str(run.step),
    }


def _files(a: Recorded, b: Recorded) -> tuple[FileDifference, ...]:
    if a.code is None or b.code is None or _tree(a) == _tree(b):
        return ()
    return text_diffs.between(a.code, b.code)


def _tree(one: Recorded) -> str | None:
    return one.manifest.workspace.tree if one.manifest.workspace else None


def _commit(one: Recorded) -> str | None:
    git = one.manifest.git
    return f"{git.commit}{' with changes' if git.dirty else ''}" if git else None


def _cluster(a: Recorded, b: Recorded) -> tuple[ValueDifference, ...]:
    """Cluster, runtime, and the keys of the cluster's and the launcher's files as they were at submit."""
    named = [{"cluster": one.manifest.cluster, "runtime": one.manifest.runtime} for one in (a, b)]
    differences = [*_differences(named[0], named[1])]
    for noun, x, y in (("cluster", a.cluster, b.cluster), ("launcher", a.launcher, b.launcher)):
        if x is not None and y is not None:
            differences += [
                ValueDifference(name=f"{noun}: {one.key}", a=_text(one.a), b=_text(one.b)) for one in keys.between(x, y)
            ]
    return tuple(differences)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _nodes(one: Recorded) -> dict[str, str | None]:
    return {"nodes": _listed(one.nodes)}


def _listed(names: Iterable[str]) -> str:
    return " ".join(names)
