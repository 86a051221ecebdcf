"""A chunk's row as `VectorIndex.write` takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Row:
    content_hash: str
    chunk_vector: NDArray[np.float32]
    nuggets: NDArray[np.int32]
    nugget_vectors: NDArray[np.float32]
