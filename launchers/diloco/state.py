"""The model as DiLoCo handles it: fragments, global parameters, and the state for recovery and checkpoints.

Of a sharded parameter (FSDP) each rank handles its own shard, always as a plain tensor. So a rank's state fits the rank
of the same number in another group.
"""

import hashlib

import torch
import torch.distributed as dist
from lib.ranks import Ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

Tensors = dict[str, torch.Tensor]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a sharded tensor. Other tensors are returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """The opposite of local(): `shard` as a part of a tensor that is sharded like `tensor`."""
    if not isinstance(tensor, DTensor):
        return shard
    # from_local would compute the whole shape from equal shards, and the last shards of FSDP may be shorter. run_check would
    # add a collective.
    return DTensor.from_local(
        shard, tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride(), run_check=False
    )


def split(net: nn.Module, count: int) -> list[list[str]]:
    """The names of the parameters of each fragment.

    Block i goes to fragment i modulo `count` (the strided pattern of Streaming DiLoCo, section 2.3). Parameters before
    the blocks go to the first fragment, those after them to the last.
    """
    fragments: list[list[str]] = [[] for _ in range(count)]
    after = False
    for name, _ in net.named_parameters():  # in the model's order: embedding, blocks, norm, head
        _, inside, rest = name.partition("blocks.")  # blocks.7.qkv.weight -> rest 7.qkv.weight
        if inside:
            after = True
            fragments[int(rest.split(".")[0]) % count].append(name)
        else:
            fragments[-1 if after else 0].append(name)
    return fragments


class Globals:
    """The parameters that all groups agree on, and the outer optimizer that moves them: Nesterov SGD."""

    def __init__(
        self, net: nn.Module, world: Ranks, wire: torch.device, *, fragments: int, lr: float, momentum: float
    ) -> None:
        self._world, self._parameters = world, dict(net.named_parameters())
        self._sharded = any(isinstance(parameter, DTensor) for parameter in self._parameters.values())  # FSDP; else DDP
        self.fragments = split(net, fragments)
        # Whole parameters (DDP), or this rank's shards (FSDP), in float32. copy=True: .to() returns its argument where nothing
        # changes, and the inner optimizer would then move the global parameters, too.
        self.values: Tensors = {
            name: local(parameter).detach().to(wire, torch.float32, copy=True)
            for name, parameter in self._parameters.items()
        }
        # torch's Nesterov: m <- momentum * m + g, then value -= lr * (g + momentum * m). It refuses a momentum of 0.
        self.optimizer = torch.optim.SGD(
            list(self.values.values()), lr=lr, momentum=momentum, nesterov=momentum > 0, foreach=False
        )
        self._sums = [0] * fragments  # of each fragment, so that an outer step reads only its own again
        self._sum_up(range(fragments))

    @torch.no_grad()
    def pseudo_gradient(self, fragment: int) -> torch.Tensor:
        """Global minus local parameters of a fragment, as a vector: the part that this rank averages with its peers.

        In a sharded model, the part is this rank's shard. Where each rank has the whole model, it is an equal share.
        """
        # (values of the fragment,), in float32, on the device from which it is sent. It is minus the progress of the inner steps.
        flat = torch.cat(
            [
                (self.values[name] - local(self._parameters[name]).to(self.values[name])).flatten()
                for name in self.fragments[fragment]
            ]
        )
        return self.part(flat)

    def part(self, flat: torch.Tensor) -> torch.Tensor:
        """The part of a fragment's vector that this rank averages with its peers."""
        if self._sharded or self._world.ddp_world_size == 1:
            return flat
        # Padded to equal parts: a collective needs the same size from each rank.
        padded = nn.functional.pad(flat, (0, -len(flat) % self._world.ddp_world_size))  # (ranks * part,)
        # (part,): with DDP all ranks of a group have the same vector. Each sends another part, so the group sends it once.
        return padded.chunk(self._world.ddp_world_size)[self._world.ddp_rank]

    def whole(self, fragment: int, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        """The opposite of part(), in host memory, the same for any number of ranks. Called by all ranks of the process group."""
        if self._sharded or self._world.ddp_world_size == 1:
            return part
        mine = part.cpu()
        parts = [torch.empty_like(mine) for _ in range(self._world.ddp_world_size)]
        # Over the ranks of this replica group, by gloo: `group` is that of the checkpoints.
        dist.all_gather(parts, mine, group=group)
        # The last part ends with padding.
        return torch.cat(parts)[: sum(self.values[name].numel() for name in self.fragments[fragment])]

    @torch.no_grad()
    def step(self, fragment: int, mean: torch.Tensor) -> None:
        """Make one step of the outer optimizer. mean: the average of the vectors that pseudo_gradient() returned."""
        if not self._sharded and self._world.ddp_world_size > 1:
            parts = [torch.empty_like(mean) for _ in range(self._world.ddp_world_size)]
            # Each rank averaged its own part with its peers. Within the group, an all-gather makes the whole vector
            # of them.
            dist.all_gather(parts, mean.contiguous())
            mean = torch.cat(parts)  # (ranks * part,); the loop below leaves the padding out
        first = 0
        for name in self.fragments[fragment]:
            value = self.values[name]
            # The pseudo-gradient takes the place of a gradient: SGD moves the global parameters against it.
            value.grad = mean[first : first + value.numel()].view_as(value)  # a view, not a copy
            first += value.numel()
        # SGD skips parameters without a gradient: those of other fragments, with their momentum, stay as they are.
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._sum_up([fragment])

    @torch.no_grad()
    def put(self, fragments: range | list[int], alpha: float = 0.0) -> None:
        """Set the model to the global parameters. alpha: the share of its own values to keep."""
        for fragment in fragments:
            for name in self.fragments[fragment]:
                mine = local(self._parameters[name])
                # lerp: global + alpha * (local - global). In place: DDP and FSDP keep referring to the same parameter.
                mine.copy_(self.values[name].to(mine).lerp(mine, alpha) if alpha else self.values[name])

    @property
    def checksum(self) -> int:
        """A checksum over the whole group. Groups with equal parameters have equal checksums."""
        # The factor place + 1 notices fragments that have changed places. Below 2**62, so that it fits int64.
        total = torch.tensor(sum((place + 1) * part for place, part in enumerate(self._sums)) % 2**62)
        if self._sharded:
            # The sum over the group's shards.
            # All ranks of the group take part. An overflow wraps modulo 2**64, and the remainder below is the same.
            dist.all_reduce(total, group=self._world.control)
        return int(total.item()) % 2**62

    def digest(self) -> str:
        """SHA-256 over all global parameters, in the model's order, gathered from the shards."""
        sha = hashlib.sha256()
        for name, value in self.values.items():
            parameter = self._parameters[name]
            # full_tensor() is an all-gather over the group's ranks.
            whole = like(parameter, value.to(parameter.device)).full_tensor() if self._sharded else value
            sha.update(whole.cpu().contiguous().view(torch.uint8).numpy().tobytes())  # 4 bytes for each value
        return sha.hexdigest()

    def give(self) -> dict[str, Tensors]:
        """Parameters and momentum by name."""
        # None before the first step of a parameter's fragment.
        momentum = {
            name: self.optimizer.state.get(value, {}).get("momentum_buffer") for name, value in self.values.items()
        }
        return {"values": self.values, "momentum": {name: kept for name, kept in momentum.items() if kept is not None}}

    @torch.no_grad()
    def take(self, state: dict[str, Tensors]) -> None:
        """Restore what give() returned."""
        for name, value in self.values.items():
            value.copy_(state["values"][name])
            kept = state["momentum"].get(name)
            # Where there is no buffer, SGD begins with the first gradient. copy=True: a buffer that nobody else writes.
            self.optimizer.state[value] = {} if kept is None else {"momentum_buffer": kept.to(value, copy=True)}
        self._sum_up(range(len(self.fragments)))

    def _sum_up(self, fragments: range | list[int]) -> None:
        """Compute the sum of a fragment's bit patterns. One changed bit changes it."""
        # The bits as integers: their sum is the same in any order. A sum of floats depends on the order of a kernel.
        for fragment in fragments:
            # () each. int64 holds the sum of up to 2**32 values of int32.
            sums = [self.values[name].view(torch.int32).sum(dtype=torch.int64) for name in self.fragments[fragment]]
            self._sums[fragment] = sum((place + 1) * int(part) for place, part in enumerate(sums))


def give_inner(net: nn.Module, optimizers: list[Optimizer]) -> dict[str, dict[str, torch.Tensor]]:
    """The state of the inner optimizers, by the name of the parameter."""
    # By name, because another process has other tensors as keys. With FSDP a rank gives its shards: they fit the rank of the
    # same number in another group.
    names = {parameter: name for name, parameter in net.named_parameters()}
    return {
        names[parameter]: {key: local(value) for key, value in state.items()}
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
    }


def take_inner(net: nn.Module, optimizers: list[Optimizer], state: dict[str, dict[str, torch.Tensor]]) -> None:
    """Restore what give_inner() returned."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            # Where torch keeps AdamW's step: a fused kernel reads it on the device (torch.optim.Optimizer.load_state_dict).
            on_device = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                # A value of the parameter's shape is sharded like it. Other values (AdamW's step) are numbers.
                optimizer.state[parameter] = {
                    key: like(parameter, value.to(parameter.device, copy=True))
                    if value.shape == local(parameter).shape
                    else value.to(parameter.device if on_device else "cpu", copy=True)
                    for key, value in state.get(names[parameter], {}).items()
                }
