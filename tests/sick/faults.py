"""Faults of a rank, a node or a disk, and the answer that `kit why` must give to each."""

from __future__ import annotations

from dataclasses import dataclass, replace

SICK_RANK = 5
# Of eight ranks on four nodes.
SICK_NODE = 3


@dataclass(frozen=True, kw_only=True)
class Sick:
    """One fault. name: of program.py. rule: of `kit why`; says: a pattern of its first line, NODE being the sick one.

    rule may be two, with a blank between: a service that does not answer is started again while ranks wait for it.
    found: by the `alarm` that the job records, by `why` while it runs, or by the `end` of the run. act: what is done to the
    node, once the ranks are there. silent: how many ranks can give no evidence. mute: how many others cannot ask torch for its
    recorder. node: the number of the sick one. groups: four replica groups, each
    with a torchrun, beside a lighthouse.
    """

    name: str
    title: str
    rule: str
    says: str
    found: str = "alarm"
    act: str = ""
    silent: int = 0
    mute: int = 0
    node: int = SICK_NODE
    groups: bool = False


BLAMED = rf"rank {SICK_RANK} \(NODE\) "
WAIT = r".*7 ranks wait for it"
FAULTS = {
    one.name: one
    for one in (
        Sick(name="sleep", title="sleeps before a collective", rule="stall-elsewhere",
             says=BLAMED + r"is in compute \(program\.py:\d+\)" + WAIT),
        Sick(name="stop", title="SIGSTOP", rule="stall-stopped", mute=1, says=BLAMED + "is stopped" + WAIT),
        Sick(name="gil", title="native code holds the GIL", rule="stall-gil", mute=1,
             says=BLAMED + r"holds the interpreter in hold_the_interpreter \(program\.py:\d+\)" + WAIT),
        Sick(name="loader", title="data loader stuck", rule="stall-data", says=BLAMED + "is in its data loader" + WAIT),
        Sick(name="fuse", title="read from a FUSE mount that stops", rule="stall-kernel", act="stop_disk",
             says=BLAMED + r"waits in the kernel \(\w+\) with /data/train\.bin open" + WAIT),
        Sick(name="shape", title="a tensor of another shape", rule="collective-mismatch", found="end",
             says=rf"rank {SICK_RANK} on NODE called "),
        Sick(name="order", title="another order of collectives", rule="stall-order",
             says=BLAMED + r"is in broadcast.*, and 7 ranks are in all_?reduce"),
        Sick(name="link", title="a node's network cut", rule="stall-unreachable", act="cut_link", silent=2,
             says=r"rank 4 on NODE: its node NODE did not answer"),
        Sick(name="disk", title="slow disk", rule="straggler", found="why", act="slow_disk",
             says=rf"rank {SICK_RANK} on NODE costs every rank \d+ % .*; [\d.]+ s of them it reads data"),
        Sick(name="loop", title="endless loop", rule="stall-loop",
             says=BLAMED + r"runs in compute \(program\.py:\d+\)" + WAIT),
        Sick(name="save", title="deadlock in save", rule="stall-save",
             says=BLAMED + r"is saving, at save \(program\.py:\d+\)" + WAIT),
        Sick(name="slow", title="a rank at a tenth of the speed", rule="straggler", found="why",
             says=rf"rank {SICK_RANK} on NODE costs every rank \d+ % of a step"),
        Sick(name="clock", title="a node's clock five minutes ahead", rule="clock-wrong", found="why", act="wrong_clock",
             says=r"the clock of NODE is (?:29\d|30\d) s ahead"),
        Sick(name="dead", title="a lighthouse that dies, and whenever it comes back", rule="role-down",
             act="kill_lighthouse", node=1, groups=True,
             says=r"role lighthouse on NODE is down: it ended with 137 .*; 8 ranks wait for it"),
        Sick(name="lighthouse", title="a lighthouse that answers no more", rule="stall-stopped role-down",
             act="stop_lighthouse", node=1, groups=True,
             says=r"role lighthouse(?:: rank 0 \(NODE\) is stopped| on NODE (?:is|was) down: it ended with 137)"),
    )
}  # fmt: skip

# The same with programs that report nothing. Those that slow a rank down, or turn a clock, need reports.
_OTHER_ANSWERS = {
    # Only a rank that reports writes its last collectives to its log.
    "shape": {"says": rf"rank {SICK_RANK} on NODE (?:called|failed first: ranks call one collective with)"},
    "link": {"rule": "observed-node", "says": r"node NODE has given no sign of life"},
    "save": {"rule": "stall-elsewhere", "says": BLAMED + r"is in save \(program\.py:\d+\)" + WAIT},
}
STRIPPED = {
    name: replace(one, **_OTHER_ANSWERS.get(name, {}))  # type: ignore[arg-type]
    for name, one in FAULTS.items()
    if one.found != "why" and not one.groups
}
_REPORTS = "from kit_rank import progress  # type: ignore[import-not-found]\n"
_NO_REPORTS = """\
import contextlib, types
progress = types.SimpleNamespace(step=lambda step: None, phase=lambda name: contextlib.nullcontext())
"""


def without_reports(program: str) -> str:
    """The program with no word of kit_rank."""
    found = program.replace(_REPORTS, _NO_REPORTS)
    if "kit_rank" in found:
        raise ValueError("the program names kit_rank elsewhere")
    return found
