"""Templates of run folders. Points of a sweep that differ only in values that no rule of the kit reads share one template.

A point's folder is made from the template when the point starts (templates/sweep/make_point.sh, kit/record/unmade_points.py).

A template is the plan of a point with tokens in place of values. As a check, the first and the last point are also planned
separately. The template is used only if it gives the same bytes for both. For all other points the folders are made at submit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from kit.errors import ConfigError
from kit.files import atomic_write
from kit.planning.plan import Plan
from kit.record.manifest import Manifest
from kit.record.unmade_points import MADE, ArrayPaths
from kit.render import plain
from kit.schema.run_paths import RunPaths
from kit.schema.sweep import Value
from kit.submission.prepare_run import Prepared
from kit.sweeps.arrays import Array
from kit.sweeps.points.expand import OWN, Point
from kit.sweeps.points.program_options import text
from kit.sweeps.prepare import PreparedSweep
from kit.sweeps.record import SweepPaths

# A template costs as much as two or three run folders.
_FEWEST = 4
_SEED = "seed"
# Numbers that stand for a point's number, its job, task and array, and its seed. A plan that has one of them anyway gets no
# template.
_POINT, _JOB, _TASK, _ARRAY, _SEED_TOKEN = 1730194628, 1730194629, 1730194631, 1730194637, 4173019463
_FIXED = tuple(map(str, (_POINT, _JOB, _TASK, _ARRAY)))
_DIGEST = "Kq7digest0of0the0job"
# A word is put into a program of sed, and into a list whose parts are separated by blanks.
_WORD = re.compile(r'[A-Za-z0-9.+_"-]+', re.ASCII)

# Makes the manifest of a plan, with these fields.
ManifestOf = Callable[[Plan, Mapping[str, object]], Manifest]
_Group = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Template:
    """A plan with tokens.

    tokens: of point number, job, task, array number and digest of job.toml, then of the values. files: the files that contain
    tokens. words: point number -> the texts that replace its tokens, from the digest on.
    """

    prepared: Prepared
    manifest: Manifest
    tokens: tuple[str, ...]
    files: tuple[str, ...]
    words: Mapping[int, tuple[str, ...]]


def find(
    prepared: PreparedSweep, arrays: Sequence[Array], after: Mapping[int, Sequence[str]], manifest_of: ManifestOf
) -> tuple[Template, ...]:
    """Find groups of points that can share a template. `kit sweep` makes the folders of all other points at submit."""
    points = {point.index: point for point in prepared.points}
    groups: dict[_Group, list[Point]] = {}
    for array in arrays:
        if _script(array) is None:
            continue
        options = tuple(after.get(array.number, ()))
        for index in array.members:
            point = points[index]
            free = prepared.free(point)
            rest = tuple((key, type(value), value) for key, value in point.values.items() if key not in free)
            groups.setdefault((options, rest, tuple(point.values), free), []).append(point)
    found = (
        _template(prepared, members, free, options, manifest_of)
        for (options, _, _, free), members in groups.items()
        if len(members) >= _FEWEST
    )
    return tuple(one for one in found if one is not None)


def changed(arrays: Sequence[Array], templates: Sequence[Template]) -> tuple[Array, ...]:
    """The arrays. Those with templates write to the sweep's own output files: Slurm opens these before a run folder exists."""
    without_folder = {index for one in templates for index in one.words}
    return tuple(
        replace(array, text=_script(array) or array.text) if without_folder & {*array.members} else array
        for array in arrays
    )


def write(
    templates: Sequence[Template],
    arrays: Sequence[Array],
    root: Path,
    final: Path,
    *,
    fill: Callable[[Template, Path], None],
) -> None:
    """Write the templates, and the lists of the arrays that need them. root: the sweep's folder, with the final name `final`.

    fill: writes a template's run folder.
    """
    lines: dict[int, str] = {}
    for number, template in enumerate(templates):
        folder = SweepPaths(root).templates / str(number)
        folder.mkdir(parents=True)
        fill(template, folder / "run")
        for name, listed in (("tokens", template.tokens), ("files", template.files)):
            (folder / name).write_text("".join(f"{line}\n" for line in listed), encoding="utf-8")
        lines |= {index: f"{index} {number} {' '.join(words)}\n" for index, words in template.words.items()}
    for array in arrays:
        if lines.keys().isdisjoint(array.members):
            continue
        into = root / array.folder.relative_to(final)
        paths = ArrayPaths(into)
        Path(paths.logs).mkdir(parents=True)
        atomic_write.write(
            Path(paths.points), "".join(lines.get(index, f"{index} {MADE}\n") for index in array.members)
        )
        (into / "make_point.sh").write_text(plain("sweep/make_point.sh"), encoding="utf-8")


def _script(array: Array) -> str | None:
    """The array's script with its output in the array's folder; None if it writes into the run folders in another way."""
    made = array.text.replace(
        f"--output={array.folder}/%a/logs/batch.log\n", f"--output={ArrayPaths(array.folder).logs}/%a.log\n"
    )
    return None if f"{array.folder}/%a/" in made else made


def _template(
    prepared: PreparedSweep,
    members: Sequence[Point],
    free: tuple[str, ...],
    options: Sequence[str],
    manifest_of: ManifestOf,
) -> Template | None:
    """The template of these points; None if the template would make a different run of one of them."""
    first = members[0]
    values: dict[str, Value] = {**first.values, **{key: _token(key, position) for position, key in enumerate(free)}}
    try:
        planned = prepared.planned(Point(index=_POINT, name="", values=values))
    except ConfigError:
        return None
    facts = _facts(prepared, options, _JOB, _TASK, _ARRAY)
    shown = {**first.values, **{key: _json_token(position) for position, key in enumerate(free)}}
    manifest = manifest_of(planned.plan, {**facts, "point": shown})
    job = RunPaths(Path()).job.name
    manifest = manifest.model_copy(update={"records": {**manifest.records, job: _DIGEST}})
    tokens = (*_FIXED, _DIGEST, *(word for position, key in enumerate(free) for word in _tokens(key, position)))
    tables = {file.name: file.text for file in planned.plan.files}
    files = tuple(name for name, content in tables.items() if any(token in content for token in tokens))
    names = "\n".join([*tables, *planned.plan.folders, *(name for _, name in planned.plan.copies)])
    if (
        planned.resolved.template is not None
        or any(token in names for token in tokens)
        or {job, *manifest.records} & {*files} != {job}
    ):
        return None
    words = {point.index: _words(point, free, tables[job], tokens) for point in members}
    if not all(_is_safe(line, tokens) for line in words.values()):
        return None
    template = Template(
        prepared=planned,
        manifest=manifest,
        tokens=tokens,
        files=(*files, RunPaths(Path()).manifest.name),
        words=words,
    )
    ends = [members[0], members[-1]]
    return template if all(_is_same(template, prepared, point, options, manifest_of) for point in ends) else None


def _facts(prepared: PreparedSweep, options: Sequence[str], job: int, task: int, array: int) -> dict[str, object]:
    """The fields of a manifest that are known after the submission."""
    script = SweepPaths(prepared.folder).arrays / str(array) / "batch.sh"
    return {"job_id": job, "array_task": task, "argv": ("sbatch", "--parsable", *options, str(script))}


def _token(key: str, place: int) -> Value:
    return _SEED_TOKEN if key == _SEED else f"Kq7value{place}of0point"


def _json_token(place: int) -> str:
    return f"Kq7json{place}of0point"


def _tokens(key: str, place: int) -> tuple[str, ...]:
    """The tokens of a key, in the order of `_words`. In the manifest, a value is JSON, and a number has no quotes."""
    in_manifest = f'"{_json_token(place)}"'
    return (in_manifest,) if key.startswith(OWN) else (in_manifest, str(_token(key, place)))


def _words(point: Point, free: Sequence[str], job: str, tokens: Sequence[str]) -> tuple[str, ...]:
    """The texts that replace a point's tokens, except the fixed ones. job: the template's job.toml."""
    words = []
    for key in free:
        value = point.values[key]
        assert not isinstance(value, tuple)
        words += [to_json(value).decode(), *([] if key.startswith(OWN) else [text(value)])]
    after_digest = len(_FIXED) + 1
    own = job.replace(_FIXED[0], str(point.index))
    own = _substituted(own, tokens[after_digest:], words)
    return (hashlib.sha256(own.encode()).hexdigest(), *words)


def _substituted(content: str, tokens: Sequence[str], words: Sequence[str]) -> str:
    """The content of a file after make_point.sh has replaced its tokens."""
    for token, word in zip(tokens, words, strict=True):
        content = content.replace(token, word)
    return content


def _is_safe(words: Sequence[str], tokens: Sequence[str]) -> bool:
    return all(_WORD.fullmatch(word) and not any(token in word for token in tokens) for word in words)


def _is_same(
    template: Template, prepared: PreparedSweep, point: Point, options: Sequence[str], manifest_of: ManifestOf
) -> bool:
    """Whether the template makes the same run folder as a separate plan of the point."""
    own = prepared.planned(point)
    model = template.prepared.plan
    words = (str(point.index), "1", "2", "3", *template.words[point.index])
    made = tuple(replace(file, text=_substituted(file.text, template.tokens, words)) for file in model.files)
    if (made, model.copies, model.folders) != (own.plan.files, own.plan.copies, own.plan.folders):
        return False
    facts = _facts(prepared, options, 1, 2, 3)
    manifest = manifest_of(own.plan, {**facts, "point": dict(point.values)})
    text_made = _substituted(template.manifest.model_dump_json(), template.tokens, words)
    return bool(json.loads(text_made) == json.loads(manifest.model_dump_json()))
