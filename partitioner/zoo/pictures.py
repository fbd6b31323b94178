"""Seeded inputs that look enough like real ones for a network to tell them apart.

White noise averages out before a classifier; smooth pictures with their own colour, light and
shapes do not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["picture", "text_picture", "tokens"]

# The bars of a seven-segment digit as (top, left, height, width) in a 9 x 5 cell.
_BARS = ((0, 0, 1, 5), (0, 0, 5, 1), (0, 4, 5, 1), (4, 0, 1, 5), (4, 0, 5, 1), (4, 4, 5, 1),
         (8, 0, 1, 5))  # fmt: skip
_DIGITS = ((0, 1, 2, 4, 5, 6), (2, 5), (0, 2, 3, 4, 6), (0, 2, 3, 5, 6), (1, 2, 3, 5),
           (0, 1, 3, 5, 6), (0, 1, 3, 4, 5, 6), (0, 2, 5), (0, 1, 2, 3, 4, 5, 6),
           (0, 1, 2, 3, 5, 6))  # fmt: skip


def _interpolation(size: int, cells: int) -> NDArray[np.float64]:
    """Return the (size, cells + 1) matrix that smoothly interpolates grid values to pixels."""
    position = np.linspace(0.0, cells, size)
    left = np.minimum(position.astype(np.int64), cells - 1)
    fraction = position - left
    weight = fraction * fraction * (3.0 - 2.0 * fraction)
    matrix = np.zeros((size, cells + 1))
    rows = np.arange(size)
    matrix[rows, left] = 1.0 - weight
    matrix[rows, left + 1] = weight
    return matrix


def picture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Draw a smooth random picture.

    Value noise in several octaves, coarse ones strongest as in photographs, with a colour cast
    and a contrast of the picture's own.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    height, width : int
        Size in pixels.

    Returns
    -------
    ndarray, shape (3, height, width)
        Values in [0, 1].
    """
    image = rng.uniform(0.35, 0.65, (3, 1, 1)) + np.zeros((3, height, width))
    contrast = rng.uniform(0.14, 0.22)
    roughness = rng.uniform(0.5, 0.7)
    for octave in range(6):
        rows, columns = 2**octave, 2**octave
        # Half the variation is shared by the channels: natural pictures are mostly light and dark.
        grid = rng.normal(size=(3, rows + 1, columns + 1))
        grid += rng.normal(size=(1, rows + 1, columns + 1))
        layer = _interpolation(height, rows) @ grid @ _interpolation(width, columns).T
        image += contrast * roughness**octave * layer
    return np.clip(image, 0.0, 1.0)


def text_picture(
    rng: np.random.Generator, height: int, width: int, lines: int
) -> NDArray[np.float64]:
    """Draw a bright smooth picture with rows of dark digits on it.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    height, width : int
        Size in pixels.
    lines : int
        Number of rows of text; each gets an equal band of the height.

    Returns
    -------
    ndarray, shape (3, height, width)
        Values in [0, 1].
    """
    image = 0.55 + 0.45 * picture(rng, height, width)
    band = height // lines
    for line in range(lines):
        scale = max(1, int(band * rng.uniform(0.4, 0.8)) // 9)
        top = line * band + (band - 9 * scale) // 2
        step = 7 * scale
        slots = max(1, (width - 2 * scale) // step)
        first = int(rng.integers(0, max(1, slots // 2)))
        count = int(rng.integers(1, slots - first + 1))
        ink = rng.uniform(0.0, 0.25, (3, 1, 1))
        for slot in range(first, first + count):
            left = scale + slot * step
            for bar in _DIGITS[int(rng.integers(10))]:
                y, x, tall, wide = (value * scale for value in _BARS[bar])
                image[:, top + y : top + y + tall, left + x : left + x + wide] = ink
    return image


def tokens(
    rng: np.random.Generator, length: int, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a BERT-style sequence: [CLS], words, [SEP], padding.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all randomness.
    length : int
        Padded sequence length.
    vocabulary : int
        Number of token ids; ids below 1000 are special or single characters and are not drawn.

    Returns
    -------
    ids, mask : ndarray of int64, shape (1, length)
        Token ids, and 1 where there is a token.
    """
    used = int(rng.integers(length // 8, length + 1))
    ids = np.zeros((1, length), np.int64)
    ids[0, :used] = rng.integers(1000, vocabulary, used)
    ids[0, 0], ids[0, used - 1] = 101, 102
    mask = np.zeros((1, length), np.int64)
    mask[0, :used] = 1
    return ids, mask
