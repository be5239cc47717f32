"""A subject made ready to run: its weights, its precision, its layout and its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .settings import Setting
from .subjects import Call, Subject, compile_


@dataclass(frozen=True)
class Case:
    """What one step runs: forward, and backward from ``gradient`` where there is one."""

    call: Call
    inputs: tuple[Tensor, ...]
    train: bool
    autocast: torch.dtype | None = None
    gradient: Tensor | None = None

    def clear(self) -> None:
        """Drop the inputs' gradients, as a network does with those between its layers. Weights keep theirs."""
        for x in self.inputs:
            x.grad = None

    def forward(self) -> Tensor:
        half = torch.autocast(self.inputs[0].device.type, self.autocast, enabled=self.autocast is not None)
        with torch.set_grad_enabled(self.train), half:
            return self.call(*self.inputs)

    def step(self) -> Tensor:
        output = self.forward()
        if self.gradient is not None:
            output.backward(self.gradient)
        return output

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.call.parameters()) if isinstance(self.call, nn.Module) else []


def draw(setting: Setting, batch: int, count: int, gradient: bool, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs, in the dtype and layout of the setting."""
    generator = torch.Generator(setting.device).manual_seed(seed)
    inputs = []
    for _ in range(count):
        x = torch.randn((batch, *setting.shape[1:]), generator=generator, device=setting.device).to(setting.dtype)
        x = x.contiguous(memory_format=setting.memory_format)
        inputs.append(x.requires_grad_(gradient and setting.mode == "train"))
    return tuple(inputs)


def load(subject: Subject, setting: Setting, weights: Mapping[str, Tensor]) -> Call:
    """Build a subject; those that compute what the reference computes get its weights."""
    torch.manual_seed(0)
    call = subject.build(setting)
    if isinstance(call, nn.Module):
        if subject.like_reference:
            call.load_state_dict(weights)
        call.to(setting.device, torch.float32 if setting.autocast else setting.dtype)
        call.to(memory_format=setting.memory_format)
        call.train(setting.mode == "train")
    return compile_(call, setting.device.type == "cpu") if subject.compiled else call


def ready(call: Call, inputs: tuple[Tensor, ...], setting: Setting, gradient: Tensor | None = None) -> Case:
    """A case, with this gradient of the output or a random one."""
    train = setting.mode == "train"
    case = Case(call, inputs, train, setting.dtype if setting.autocast else None)
    if not train:
        return case
    output = case.forward().detach()
    given = torch.randn_like(output) if gradient is None else torch.empty_like(output).copy_(gradient)
    return replace(case, gradient=given)
