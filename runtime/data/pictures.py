"""A folder of pictures by class: which files are taken, which are left out, and how a picture becomes pixels."""

import collections
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from absl import logging
from PIL import Image, ImageOps

from runtime.data.files import WORDS
from runtime.process.errors import UnusableError
from runtime.process.threads import reminding

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM")  # each told by a file's first bytes
ENDINGS = {ending for ending, of in Image.registered_extensions().items() if of in FORMATS}  # of their names
TEST_PERIOD = 10  # every tenth picture of a class is for tests, from the second on
OF_PROGRAMS = (".", "__", "@")  # begin the names of folders that no person has made: .git, __MACOSX, @eaDir
warnings.filterwarnings("ignore", module=r"PIL\.")  # such as of EXIF data that are damaged where nobody needs them
MAX_TOLD = 20  # classes, or files, that a line names


def find_classes(data_dir: str) -> list[str]:
    """Return the names of the classes, which are the folders of what is trained on; the place of one is its label.

    Raises:
      UnusableError: there are fewer than two, or one is called like a folder of tests.
    """
    folders = _find_splits(data_dir)
    folder = folders["train"]
    names = _list_folders(folder)
    if folder == data_dir and (tests := [name for name in names if name.lower() in WORDS["t10k"]]):
        remedy = "rename it, or move the classes into a folder train"
        raise UnusableError(f"--data_dir {data_dir} has a folder {tests[0]} for tests, but no folder train: {remedy}")
    if len(names) < 2:
        found = f"only {names[0]}: try --data_dir={os.path.join(folder, names[0])}" if names else "none"
        raise UnusableError(f"{folder} must have a folder of pictures for each class, at least 2, found {found}")
    return names


def list_pictures(data_dir: str, split: str) -> tuple[list[str], list[int]]:
    """Return the paths of the pictures of one split, `train` or `t10k`, and their labels; log what is left out.

    Where there is DATA_DIR/train, its folders are the classes, else those of DATA_DIR. A picture may lie at any depth
    in its class. DATA_DIR/test, or val and so on, is for tests; else every tenth picture of each class is. A picture is
    what begins like one, whatever its name.

    Raises:
      UnusableError: a class has no picture, or only tests have it, or what is called like a picture is none.
    """
    folders, classes = _find_splits(data_dir), find_classes(data_dir)
    folder, is_for_both = folders.get(split, folders["train"]), len(folders) == 1
    names = _list_folders(folder)
    if unknown := [name for name in names if name not in classes]:
        path = os.path.join(folder, unknown[0])
        raise UnusableError(f"{path} is not one of the training classes, {_join(classes)}: rename or remove it")
    taken, left = ({name: list[str]() for name in [*classes, "no class"]} for _ in range(2))
    wrong = list[str]()
    with reminding(f"still looking at the pictures of {split}", folder):
        beside = (name for name in sorted(os.listdir(folder)) if not name.startswith("."))
        left["no class"] = [name for name in beside if os.path.isfile(os.path.join(folder, name))]
        for name in names:
            for path in _walk(os.path.join(folder, name)):
                is_called_so = os.path.splitext(path)[1].lower() in ENDINGS
                (taken[name] if _is_picture(path) else wrong if is_called_so else left[name]).append(path)
    if wrong:
        raise UnusableError(
            f"files named like pictures are not pictures: copy them again, or remove them: {_join(wrong)}"
        )
    if folder == folders["train"] and (empty := [name for name in classes if not taken[name]]):
        paths = _join([os.path.join(folder, name) for name in empty])
        raise UnusableError(f"a class has no pictures: add some, or remove its folder: {paths}")
    if is_for_both:
        is_for_tests = split == "t10k"
        for name, of_class in taken.items():
            taken[name] = [path for n, path in enumerate(of_class) if (n % TEST_PERIOD == 1) == is_for_tests]
    labels = [label for label, name in enumerate(classes) for _ in taken[name]]
    if not labels:
        raise UnusableError(f"{folder} has no test pictures in its class folders: add some")
    told = len(labels), split, folder, _describe(taken), _describe(left) or "nothing"
    logging.info("%d pictures of %s in %s: %s; ignored: %s", *told)
    return [path for name in classes for path in taken[name]], labels


def read_picture(path: str | bytes, shape: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture, upright and over white, scaled to `shape`, [h, w], or [h, w, 1 or 3] for colours.

    Whoever decodes it raises an error of its own for a file that is damaged.
    """
    height, width, *channels = shape
    picture = open_upright(path, 4 * max(height, width))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = picture.convert("RGB" if channels == [3] else "L")
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)).reshape(shape)  # the mean over an area


def open_upright(path: str | bytes, min_size: int | None = None) -> Image.Image:
    """Return a picture, of several the first, as its EXIF data turn it, with 8 bits a channel; it may be transparent.

    A JPEG that is far larger than `min_size` is scaled while it is decoded, which is several times as fast.
    """
    with Image.open(path) as file:
        if min_size:
            file.draft(None, (min_size, min_size))
        return _to_8_bits(ImageOps.exif_transpose(file))


def _to_8_bits(picture: Image.Image) -> Image.Image:
    """Return a picture whose pixels have 8 bits: those with more are scaled, so that 0 stays 0 as far as it is there.

    Pillow itself would clip them. Such pictures often use a part of their range only, such as 12 of 16 bits.
    """
    if picture.mode not in ("I", "F") and not picture.mode.startswith("I;16"):
        return picture
    pixels = np.nan_to_num(np.asarray(picture, np.float64), posinf=0, neginf=0)
    lowest, highest = min(pixels.min(), 0), max(pixels.max(), 0)
    return Image.fromarray((255 * (pixels - lowest) / ((highest - lowest) or 1)).astype(np.uint8))


def _is_picture(path: str) -> bool:
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except Exception:  # each format's reader has errors of its own
        return False


def _find_splits(data_dir: str) -> dict[str, str]:
    """Return the folders of `train` and `t10k`, or of `train` alone if that has both."""
    names = {name.lower(): name for name in _list_folders(data_dir)}
    found = {split: names[word] for split, words in WORDS.items() for word in reversed(words) if word in names}
    return {of: os.path.join(data_dir, name) for of, name in found.items()} if "train" in found else {"train": data_dir}


def _list_folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(of.name for of in entries if of.is_dir() and not of.name.startswith(OF_PROGRAMS))
    except OSError as error:
        raise _unreadable(error) from error


def _walk(folder: str) -> Iterator[str]:
    """Yield the paths of the files at any depth, in one order; no folder twice, as a link may lead back."""

    def fail(error: OSError) -> None:
        raise _unreadable(error) from error

    seen = set[str]()
    for parent, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(OF_PROGRAMS))
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith("."))


def _unreadable(error: OSError) -> UnusableError:
    return UnusableError(f"{error.filename} cannot be read: {error.strerror}; fix it, or give another --data_dir")


def _describe(paths: Mapping[str, list[str]]) -> str:
    """Return how many files there are of each class, and of each ending in it; of a class without any, nothing."""
    told = []
    for name, of_class in paths.items():
        endings = collections.Counter(os.path.splitext(path)[1].lower() or "no ending" for path in of_class)
        if of_class:
            told.append(
                f"{name} {len(of_class)} ({', '.join(f'{ending} {n}' for ending, n in sorted(endings.items()))})"
            )
    return _join(told)


def _join(parts: Sequence[str]) -> str:
    return ", ".join(parts[:MAX_TOLD]) + f" and {len(parts) - MAX_TOLD} more" * (len(parts) > MAX_TOLD)
