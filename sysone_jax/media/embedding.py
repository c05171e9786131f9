"""Media whose features the caller already has: they stand where the vision tower's would, and nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysone_jax.media.sources import fault


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """One image's or one video's features, as the model's own tower gives them.

    Attributes:
        features: [tokens, embed], of floats, in the order of the tower's output.
        grid: frames (an image's is 1; a video's counts groups of ``temporal_patch_size``), rows and columns of patches.
            There are ``frames * rows * columns / merge^2`` tokens.
        seconds: of a video, when each group of frames is shown.
    """

    features: np.ndarray
    grid: tuple[int, int, int]
    seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", np.asarray(self.features))

    @property
    def tokens(self) -> int:
        return len(self.features)

    def check(self, name: str, *, merge: int, embed: int | None, video: bool) -> None:
        """InputError when the parts do not fit each other, or (``embed`` given) not the model."""
        if len(self.grid) != 3 or not all(isinstance(size, int | np.integer) and size > 0 for size in self.grid):
            raise fault(name, f"the grid must be three whole numbers from 1 on, not {self.grid!r}")
        frames, rows, columns = self.grid
        if rows % merge or columns % merge or (frames != 1 and not video):
            wanted = f"rows and columns that divide by {merge}{'' if video else ', and one frame'}"
            raise fault(name, f"a grid of {frames} x {rows} x {columns} does not fit this model, which needs {wanted}")
        shape = self.features.shape
        tokens = frames * rows * columns // merge**2
        if len(shape) != 2 or shape[0] != tokens or embed not in (None, shape[1]):
            width = "embed" if embed is None else embed
            raise fault(name, f"the features of this grid must be [{tokens}, {width}], not {list(shape)}")
        if not np.issubdtype(self.features.dtype, np.floating) and self.features.dtype.name != "bfloat16":
            raise fault(name, f"the features must be floats, not {self.features.dtype}")
        if not np.isfinite(self.features.astype(np.float32)).all():
            raise fault(name, "the features hold a NaN or an infinity")
        if len(self.seconds) != (frames if video else 0):
            raise fault(name, f"{frames if video else 0} times are needed as seconds, not {len(self.seconds)}")
        if not all(np.isfinite(self.seconds)):
            raise fault(name, "the seconds hold a NaN or an infinity")
