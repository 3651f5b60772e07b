"""SplitMix64 (Steele, Lea, Flood 2014) as a hash of a counter: a number does not depend on the numbers before it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)
"""What is added per number: 2**64 divided by the golden ratio."""


def mix(values: UInt64s) -> UInt64s:
    """SplitMix64's finalizer: 64 bits in, 64 well-mixed bits out."""
    values = values + STEP
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64s = values ^ (values >> np.uint64(31))
    return mixed


def uniform(seed: UInt64s, numbers: UInt64s) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that belong to a seed (an array of one number) and to counters."""
    found: npt.NDArray[np.float64] = (mix(seed + numbers * STEP) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found
