"""All randomness of the project, as a function of (seed or secret, purpose, round, client)."""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit number that depends on every argument and is the same on every machine."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a torch generator for one purpose, for example ``generator(seed, "batches", round, client)``."""
    made = torch.Generator()
    made.manual_seed(key(seed, *purpose))
    return made


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


def secret_normal(secret: bytes, size: int, *purpose: str | int) -> np.ndarray:
    """Draw standard normal numbers, float64, that nobody can repeat or guess without the secret.

    They are a SHAKE-256 stream, transformed by Box and Muller: torch's generators use only 32 bits of a seed, and the
    draws of numpy's generators reveal the next ones.
    """
    text = "/".join(map(str, purpose))
    stream = hashlib.shake_256(hashlib.sha256(secret).digest() + text.encode()).digest(16 * -(-size // 2))
    uniform = (np.frombuffer(stream, "<u8") >> 11) * 2.0**-53
    half = len(uniform) // 2
    radius, angle = np.sqrt(-2 * np.log1p(-uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:size]
