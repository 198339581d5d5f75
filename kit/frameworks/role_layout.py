"""Nodes and GPUs of `[rl]` and `[sft]`: checks that they divide evenly, and computes the options that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from kit.errors import Fault
from kit.frameworks.nearest_multiple_or_divisor import divisor, multiple
from kit.schema.rl_and_sft import Rl, Servers, Sft
from kit.schema.role_programs import Programs


def lookup(tables: Mapping[str, Any], path: str) -> Any:
    """The value at `role.option`; None if it is not set."""
    found: Any = tables
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def nodes_of(table: Sft) -> int:
    """The number of nodes of the trainer and the servers together."""
    return 1 if table.one_node else table.num_train_nodes + sum(one.nodes for one in table.servers().values())


def gpus_of(table: Sft, gpus: int) -> tuple[int, int]:
    """GPUs per node of the trainer, and of the servers. gpus: the number used on each node."""
    return (table.num_train_gpus or 1, table.num_infer_gpus or 1) if table.one_node else (gpus, gpus)


def copies_per_node(table: Sft, gpus: int) -> int:
    """The number of copies of the model on an inference node. Each copy has a server of its own."""
    tp, nodes, on_node = table.parallel.tp, sum(one.nodes for one in table.servers().values()), gpus_of(table, gpus)[1]
    return max(1, (table.parallel.dp or max(on_node * nodes // tp, nodes)) // nodes) if nodes else 1


def uneven(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    """Numbers of nodes and GPUs that do not divide evenly, and layouts that the programs do not support."""
    group, servers = table.nodes_per_fsdp_group, table.servers()
    if group is not None and table.num_train_nodes % group:
        problem = f"{group} does not divide num_train_nodes, {table.num_train_nodes}"
        hint = f"nodes_per_fsdp_group = {divisor(group, table.num_train_nodes)}"
        yield Fault(key="nodes_per_fsdp_group", problem=problem, hint=hint)
    yield from _uneven_split(table, programs, gpus)
    yield from _unplaced(table, programs, gpus)
    if servers:
        yield from _uneven_copies(table, programs, gpus)
    for name, one in servers.items():
        if one.nodes % one.replicas:
            key = "parallel.replicas" if name == "inference" else f"{name}.replicas"
            problem = f"{one.replicas} does not divide the {one.nodes} nodes of these servers"
            yield Fault(key=key, problem=problem, hint=f"replicas = {divisor(one.replicas, one.nodes)}")


def _unplaced(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    """Servers that the programs do not have, and keys that set the place of the servers twice."""
    servers, given = table.servers(), table.model_fields_set
    for name in servers:
        if name in {"prefill", "decode"} - set(programs.roles):
            problem = f"the programs {table.programs!r} have no role {name!r}"
            yield Fault(key=name, problem=problem, hint="remove the table")
    if "prefill" in servers and "num_infer_nodes" in given:
        problem = "[rl.prefill] and [rl.decode] say how many inference nodes there are"
        yield Fault(key="num_infer_nodes", problem=problem, hint="remove the line")
    if not table.one_node:
        return
    key = "num_train_gpus" if "num_train_gpus" in given else "num_infer_gpus"
    train, infer = gpus_of(table, gpus)
    many = [name for name in ("num_train_nodes", "num_infer_nodes") if getattr(table, name) > 1]
    if many or "prefill" in servers:
        problem = f"trainer and servers share one node here, and {', '.join(many) or '[rl.prefill]'} asks for more"
        yield Fault(key=key, problem=problem, hint="remove num_train_gpus and num_infer_gpus")
    elif not servers:
        problem = "this run has no role that evaluates, so there are no servers to share the trainer's node"
        yield Fault(key=key, problem=problem, hint=f"gpus_per_node = {train}")
    elif train + infer > gpus:
        problem = f"{train} for the trainer and {infer} for the servers are more than the node's {gpus}"
        yield Fault(key=key, problem=problem, hint=f"gpus_per_node = {train + infer}, on nodes that have them")


def _uneven_copies(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    """Numbers of copies that do not fit the inference nodes."""
    tp, dp, nodes = table.parallel.tp, table.parallel.dp, sum(one.nodes for one in table.servers().values())
    gpus, named = gpus_of(table, gpus)[1], "num_infer_gpus" if table.one_node else "gpus_per_node"
    problem, fits = "", 1
    if tp > 1 and "tp" not in programs.keys:
        problem = f"in the programs {table.programs!r} each GPU holds a whole model: only dp can be above 1"
    elif gpus and gpus % tp:
        problem = f"{tp} does not divide {named}, {gpus}: a copy of the model stays on its node"
        fits = divisor(tp, gpus)
    elif not gpus and tp > 1:
        problem = "a node without GPUs holds a whole model: only dp can be above 1"
    if problem:
        yield Fault(key="parallel.tp", problem=problem, hint=f"tp = {fits}")
    elif gpus and dp is not None and tp * dp != gpus * nodes:
        problem = f"tp {tp} x dp {dp} = {tp * dp} is not {nodes} inference nodes x {gpus} GPUs = {gpus * nodes}"
        yield Fault(key="parallel.dp", problem=problem, hint=f"dp = {gpus * nodes // tp}")
    elif not gpus and dp is not None and dp % nodes:
        problem = f"{dp} copies cannot be shared out evenly over {nodes} inference nodes"
        yield Fault(key="parallel.dp", problem=problem, hint=f"dp = {multiple(dp, nodes)}")


def _split(table: Sft, programs: Programs) -> dict[str, int]:
    """How many ranks share a sequence, by option. Only options that the sub-tables set to more than 1."""
    tables = table.tables()
    found = {option: lookup(tables, option) for option in programs.split}
    return {option: value for option, value in found.items() if isinstance(value, int) and value > 1}


def _uneven_split(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    ranks = table.num_train_nodes * max(gpus_of(table, gpus)[0], 1)
    for option, share in _split(table, programs).items():
        if ranks % share:
            hint = f"{option.rpartition('.')[2]} = {divisor(share, ranks)}"
            yield Fault(key=option, problem=f"{share} does not divide the trainer's {ranks} ranks", hint=hint)


def derived(table: Sft, programs: Programs, gpus: int) -> dict[str, Any]:
    """Values that follow from the layout, under the names that `keys` may use."""
    split = prod(_split(table, programs).values())
    values: dict[str, Any] = {"train_workers": table.num_train_nodes * max(gpus_of(table, gpus)[0], 1) // split}
    if split > 1:
        values["split"] = split
    if table.nodes_per_fsdp_group is not None:
        values["dp_replicate"] = table.num_train_nodes // table.nodes_per_fsdp_group
    servers = table.servers()
    return {**values, **_of_servers(table, servers, programs, gpus)} if servers else values


def _of_servers(table: Sft, servers: Mapping[str, Servers], programs: Programs, gpus: int) -> dict[str, Any]:
    tp, nodes, each = table.parallel.tp, sum(group.nodes for group in servers.values()), copies_per_node(table, gpus)
    apart = isinstance(table, Rl) and "prefill" in servers
    expert = bool(programs.expert and lookup(table.tables(), programs.expert))
    values: dict[str, Any] = {"tp": tp, "dp": each * nodes, "dp_per_node": each, "inference_servers": nodes}
    # Only copies that share experts form one group. With separate prefill and decode, servers.py sets the group at the start.
    values["dp_together"] = each * nodes // servers["inference"].replicas if expert and not apart else each
    if (each > 1 or expert or apart) and not table.one_node:
        values["dp_local"] = each
    if apart:
        roles = [name for name, group in servers.items() for _ in range(group.nodes * each)]
        values |= {"apart": True, "server_roles": roles}
    values["weight_broadcast"] = table.weight_broadcast or "filesystem"
    if table.weight_broadcast == "nccl":
        values["inference_world_size"] = each * nodes * tp  # only the NCCL broadcast has this option
    return values
