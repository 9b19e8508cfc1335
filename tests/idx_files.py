"""Writes small data sets in MNIST's format."""

import gzip
import os
import struct

import numpy as np


def write(data_dir, split, images, labels):
    """Write uint8 images [n, 28, 28] and labels [n] as one split."""
    write_file(data_dir, f"{split}-images-idx3-ubyte.gz", 0x803, images)
    write_file(data_dir, f"{split}-labels-idx1-ubyte.gz", 0x801, labels)


def write_file(data_dir, name, magic, items):
    """Write one gzipped IDX file of unsigned bytes, and return its path."""
    path = os.path.join(data_dir, name)
    header = struct.pack(f">{1 + items.ndim}I", magic, *items.shape)
    with gzip.open(path, "wb") as file:
        file.write(header + np.ascontiguousarray(items, np.uint8).tobytes())
    return path
