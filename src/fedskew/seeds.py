"""Randomness as a function of (seed, purpose, round, client); nothing else in the project makes any."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key(seed: int, *purpose: str | int) -> int:
    """A 63-bit number that depends on every argument, the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A torch generator for one purpose, for example ``generator(seed, "batches", round, client)``."""
    made = torch.Generator()
    made.manual_seed(key(seed, *purpose))
    return made


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))
