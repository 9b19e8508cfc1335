"""Where the examples of a run come from: from `load()` into memory, or through `tf.data` as they are needed."""

import os
from typing import Any

from runtime.data import download
from runtime.data.files import find_records, name_of
from runtime.data.memory import MemorySource
from runtime.data.reader import Columns
from runtime.data.records import RecordSource, make_parse
from runtime.data.users import UsersSource
from runtime.model.users_files import call, check_columns, check_examples
from runtime.process.errors import UnusableError, check_folder
from runtime.process.threads import reminding

SHARDINGS = ("static", "dynamic")
Source = MemorySource | RecordSource | UsersSource


def load(data_dir: str, split: str, reader: Any) -> Columns:
    """Return the examples of one split, such as those to test with, in memory; it raises what `open_source()` does."""
    return open_source(data_dir, split, reader).load()


def open_source(data_dir: str, split: str, reader: Any) -> Source:
    """Return the examples of one split in `data_dir`; an empty folder is filled first, if `reader` can fetch them.

    Raises:
      UnusableError: a file is missing, or is not what it should be; or what a function of `reader` returns is not.
    """
    check_folder("data_dir", data_dir, is_pattern=False)
    if hasattr(reader, "fetch") and download.may_fetch(data_dir):
        call(reader, "fetch", data_dir)
    where = f"the examples {split!r} of --data_dir {data_dir}"
    if hasattr(reader, "build_dataset"):
        return UsersSource(reader, data_dir, split, where)
    with reminding(f"still reading the examples {split!r}", data_dir):
        parse = make_parse(reader)
        if parse and (paths := find_records(data_dir, split)):
            return RecordSource(paths, parse, reader.INPUT, where)
        if not hasattr(reader, "load"):
            missing = "there is no such folder"
            if os.path.isdir(data_dir):
                names = ", ".join(sorted(os.listdir(data_dir))[:5]) or "nothing"
                missing = f"it has {names}, and no TFRecord files, such as {name_of(split, 0, 4)}"
            raise UnusableError(f"{where} cannot be found: {missing}, and mnist_input.py has no load()")
        examples = call(reader, "load", data_dir, split)
    check_examples(examples, where)
    source = MemorySource(examples)
    check_columns(source.signature, reader.INPUT, where, examples._fields)
    return source
