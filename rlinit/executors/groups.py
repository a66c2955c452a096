"""Plans of stages of several devices on decoders of transformers: one process a device, started by torchrun.

Every process builds the same model and a `DistributedModel` of the same plan, which keeps the process's part of it. The
ranks of processes are those of the plan's devices: stage by stage, replica by replica, member by member of its tensor
group. Replica m mod d of a stage takes micro-batch m; replicas add up their gradients after the last one. With
``1f1b`` a replica has as many micro-batches in flight as the plan counts, then goes backward once for each forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.lowering.decoders import DecoderStage, check_decoder
from rlinit.executors.pipeline import joined_group, microbatch_sizes
from rlinit.plan import Plan
from rlinit.stages.groups.decoder_spans import decoder_spans, recomputed_layers, rules_of_equal_shares

Loss = Callable[[Any, Any], Any]
"""Takes logits and targets of a micro-batch; returns the mean loss over them, a scalar tensor."""


@dataclass(frozen=True, slots=True)
class GroupedStep:
    """What one process has after a training step.

    Parameters
    ----------
    loss
        Mean loss over the batch, on processes of the last stage; None elsewhere.
    seconds
        Of the step, from one barrier to the next.
    in_flight
        Micro-batches that this process held at most.
    """

    loss: float | None
    seconds: float
    in_flight: int


@dataclass(slots=True)
class _Passes:
    """Micro-batches under way, (received, made) each; sends that have not ended; the sum of losses; most under way."""

    held: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    sends: list[tuple[Any, torch.Tensor]] = field(default_factory=list)
    loss: float = 0.0
    most: int = 0


class DistributedModel:
    """The part of a decoder that this process has by a plan of stages of several devices.

    Parameters
    ----------
    plan
        Of `schedule` or `rlinit.llm.plan`, with `replicas` or `tensor_parallel`.
    model
        A causal language model of transformers, the same in every process, in eval mode; it is cut down to this
        process's part.
    device
        Where this process computes: the CPU, or ``cuda:N``.
    time_limit_s
        Seconds that a process waits for another before it gives up.

    Raises
    ------
    InvalidPlan
        Not such a plan, not as many processes as it has devices, or a model that it does not fit.
    """

    def __init__(self, plan: Plan, model: Any, *, device: str = "cpu", time_limit_s: float = 60.0) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        self.rules, self.device = rules_of_equal_shares(plan, "processes run"), device
        check_decoder(model, [use.tensor_parallel for use in plan.stages])
        spans = decoder_spans(plan, model.config.num_hidden_layers)
        self._mine = joined_group(time_limit_s)
        self._uses, sizes = plan.stages, [(use.replicas, use.tensor_parallel) for use in plan.stages]
        # stage, replica and member of the tensor group, by rank
        self._places: list[tuple[int, ...]] = [
            (j, *place) for j, size in enumerate(sizes) for place in product(*map(range, size))
        ]
        if dist.get_world_size() != len(self._places):
            raise InvalidPlan(
                f"there are {dist.get_world_size()} processes for {len(self._places)} devices; expected one each"
            )
        self.stage, self.replica, self.member = self._places[dist.get_rank()]
        self.use = plan.stages[self.stage]
        self._members, self._replicas, self._ends = self._groups(time_limit_s)
        self.part = DecoderStage(
            model.to(device),
            spans[self.stage],
            None if self._members is None else DeviceMesh.from_group(self._members, device.partition(":")[0]),
            recomputed_layers(self.use),
        )

    def close(self) -> None:
        """Leave the other processes, where this object joined them."""
        if self._mine:
            dist.destroy_process_group()

    def _groups(self, time_limit_s: float) -> tuple[Any, Any, Any]:
        """Return this process's tensor group, its replicas, and the first and last stage together; None where alone."""
        found: list[Any] = [None, None, None]
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, (j, r, k) in enumerate(self._places):
            for key in [(0, j, r), (1, j, k), *([(2,)] if j in (0, len(self._uses) - 1) else [])]:
                groups.setdefault(key, []).append(rank)
        for (kind, *_), group in sorted(groups.items()):  # every process takes part in making a group
            if len(group) > 1:
                made = dist.new_group(group, timeout=timedelta(seconds=time_limit_s))
                if dist.get_rank() in group:
                    found[kind] = made
        return found[0], found[1], found[2]

    # -- what users call ---------------------------------------------------------------------------------------

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, loss: Loss) -> GroupedStep:
        """Run forward and backward of a batch; gradients are those of the mean loss, added up over replicas.

        Parameters
        ----------
        tokens
            (b, s) of the whole batch, the same in every process; b is a multiple of the plan's micro-batches.
        targets
            A tensor with the same first dimension.
        loss
            The mean loss of a micro-batch.

        Raises
        ------
        InvalidPlan
            The plan is not for training, or the batch cannot be split into its micro-batches.
        ExecutionFailure
            This stage failed, or another process is gone.
        """
        if not self.rules.training:
            raise InvalidPlan("the plan is for inference; make it with training='1f1b' and micro-batches")
        count = self.rules.microbatches
        microbatch_sizes([tokens, targets], count)
        given, wanted = tokens.chunk(count), targets.chunk(count)
        passes = _Passes()
        self.part.model.zero_grad()
        with self._failing():
            dist.barrier()
            started = time.perf_counter()
            for forward, m in pass_order(self._own(), self.use.in_flight):
                if forward:
                    self._forward(passes, m, given[m])
                else:
                    self._backward(passes, m, loss, wanted[m])
            for work, _ in passes.sends:
                work.wait()
            self._add_up()
            mean = self._mean_loss(passes)
            dist.barrier()
        return GroupedStep(mean, time.perf_counter() - started, passes.most)

    def logits(self, tokens: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return micro-batch -> logits (b, s, vocabulary), of those that this process ends; none before the last stage.

        Parameters
        ----------
        tokens
            (b, s) of the whole batch, the same in every process.

        Raises
        ------
        InvalidPlan
            The batch cannot be split into the plan's micro-batches.
        ExecutionFailure
            This stage failed, or another process is gone.
        """
        microbatch_sizes([tokens], self.rules.microbatches)
        given, passes, found = tokens.chunk(self.rules.microbatches), _Passes(), {}
        with self._failing(), torch.no_grad():
            for m in self._own():
                self._forward(passes, m, given[m])
                _, made = passes.held.pop(m)
                if self.part.span.heads:
                    found[m] = made
            for work, _ in passes.sends:
                work.wait()
        return found

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return name in the whole model -> whole gradient, of the parameters that this process holds a part of.

        Every process of the tensor group has to call it.
        """
        return {name: _whole(value.grad) for name, value in self.part.parameters.items() if value.grad is not None}

    # -- what a step is made of --------------------------------------------------------------------------------

    def _own(self) -> list[int]:
        """Return this replica's micro-batches."""
        return list(range(self.replica, self.rules.microbatches, self.use.replicas))

    def _forward(self, passes: _Passes, m: int, tokens: torch.Tensor) -> None:
        if self.part.span.embeds:
            given = tokens.to(self.device)
        else:
            config = self.part.model.config
            empty = torch.empty(*tokens.shape, config.hidden_size, dtype=self.part.model.dtype, device=self.device)
            given = self._receive(empty, self.stage - 1, m, 2 * m)
            given.requires_grad_(torch.is_grad_enabled())
        made = self.part(given)
        passes.held[m] = (given, made)
        passes.most = max(passes.most, len(passes.held))
        if not self.part.span.heads:
            self._send(passes, made.detach(), self.stage + 1, m, 2 * m)

    def _backward(self, passes: _Passes, m: int, loss: Loss, targets: torch.Tensor) -> None:
        given, made = passes.held.pop(m)
        if self.part.span.heads:
            value = loss(made, targets.to(self.device)) / self.rules.microbatches
            passes.loss += float(value.detach())
            torch.autograd.backward(value)
        else:
            torch.autograd.backward(made, self._receive(torch.empty_like(made), self.stage + 1, m, 2 * m + 1))
        if not self.part.span.embeds:
            assert given.grad is not None
            self._send(passes, given.grad, self.stage - 1, m, 2 * m + 1)

    def _receive(self, into: torch.Tensor, stage: int, m: int, tag: int) -> torch.Tensor:
        """Receive what one member of the replica of a stage sends to this one, and return it."""
        other = self._uses[stage]
        place = (stage, m % other.replicas, self.member % other.tensor_parallel)
        dist.recv(into, self._places.index(place), tag=tag)
        return into

    def _send(self, passes: _Passes, value: torch.Tensor, stage: int, m: int, tag: int) -> None:
        """Send to the members of the replica of a stage that count on this one."""
        other, value = self._uses[stage], value.contiguous()
        for k in range(self.member, other.tensor_parallel, self.use.tensor_parallel):
            work = dist.isend(value, self._places.index((stage, m % other.replicas, k)), tag=tag)
            passes.sends.append((work, value))

    def _add_up(self) -> None:
        """Add up gradients over replicas, and those of weights that embedding and head share."""
        for name, value in self.part.parameters.items():
            if value.grad is None:
                value.grad = torch.zeros_like(value)
            if name in self.part.partial:
                dist.all_reduce(value.grad, group=self._members)
            if self._replicas is not None:
                dist.all_reduce(_local(value.grad), group=self._replicas)
        if self.part.tied is None:
            return
        held = [self.part.parameters[name] for name in self.part.tied if name in self.part.parameters]
        if not held:
            return
        total = torch.stack([_whole(value.grad) for value in held]).sum(0)
        if self._ends is not None:
            if (self.replica, self.member) != (0, 0):
                total.zero_()
            dist.all_reduce(total, group=self._ends)
        for value in held:
            _set_whole(value, total)

    def _mean_loss(self, passes: _Passes) -> float | None:
        if not self.part.span.heads:
            return None
        total = torch.tensor(passes.loss, dtype=torch.float64, device=self.device)
        if self._replicas is not None:
            dist.all_reduce(total, group=self._replicas)
        return float(total)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Say in one line which stage failed."""
        try:
            yield
        except (RuntimeError, ValueError) as problem:
            if isinstance(problem, InvalidPlan):
                raise
            first = str(problem).strip().partition("\n")[0]
            raise ExecutionFailure(
                f"stage {self.stage} (replica {self.replica}, member {self.member}) failed on {self.device}, or a "
                f"process next to it is gone: {first}"
            ) from problem


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each next token.

    Parameters
    ----------
    logits
        (b, s, vocabulary).
    tokens
        (b, s).
    """
    mean: torch.Tensor = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    return mean


def pass_order(mine: Sequence[int], in_flight: int) -> list[tuple[bool, int]]:
    """Return (is it forward, micro-batch) of a replica's passes: one backward for each forward once enough are held.

    Parameters
    ----------
    mine
        Its micro-batches, in order.
    in_flight
        Micro-batches that it holds at most.
    """
    order = [(True, m) for m in mine[:in_flight]]
    for at, m in enumerate(mine):
        order.append((False, m))
        if at + in_flight < len(mine):
            order.append((True, mine[at + in_flight]))
    return order


def _local(value: Any) -> torch.Tensor:
    """Return what this process has of a tensor that may be split over a group."""
    local: torch.Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def _whole(value: Any) -> torch.Tensor:
    """Return a tensor that may be split over a group as a whole."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def _set_whole(value: Any, gradient: torch.Tensor) -> None:
    """Make a whole tensor the gradient of a parameter that may be split over a group."""
    if not hasattr(value, "full_tensor"):
        value.grad = gradient.clone()
        return
    from torch.distributed.tensor import distribute_tensor

    value.grad = distribute_tensor(gradient, value.device_mesh, value.placements, src_data_rank=None)
