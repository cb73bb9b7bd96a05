"""Randomness as a function of (seed or secret, purpose, round, client); nothing else in the project makes any."""

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


def secret_normal(secret: bytes, size: int, *purpose: str | int) -> np.ndarray:
    """Standard normal draws, float64, that nobody can repeat or try out without the secret.

    A stream of SHAKE-256 made normal by Box and Muller: torch's generators use 32 bits of a seed, and what numpy's have
    drawn tells what they will.
    """
    text = "/".join(map(str, purpose))
    stream = hashlib.shake_256(hashlib.sha256(secret).digest() + text.encode()).digest(16 * -(-size // 2))
    uniform = (np.frombuffer(stream, "<u8") >> 11) * 2.0**-53
    half = len(uniform) // 2
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:size]
