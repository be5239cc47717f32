"""Random draws that depend on seed, epoch and sample alone, never on which worker makes them or what came before."""

import hashlib

import torch


def generator(seed: int, *where: int) -> torch.Generator:
    """A generator for one place, such as (epoch, sample): the same numbers whoever asks, and whenever."""
    digest = hashlib.blake2b(repr((seed, *where)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def uniform(low: float, high: float, source: torch.Generator) -> float:
    """A number between low and high."""
    return low + (high - low) * float(torch.rand((), generator=source, dtype=torch.float64))


def integer(low: int, high: int, source: torch.Generator) -> int:
    """A whole number, at least low and below high."""
    return int(torch.randint(low, high, (), generator=source))
