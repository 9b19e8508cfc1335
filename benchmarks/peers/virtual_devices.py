"""`distributed.py` whose tasks have several CPUs, in the place of GPUs: TensorFlow divides the processor into them."""

import pathlib
import runpy
import sys
from typing import Any
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).parents[2]))  # the project is run from its checkout, not installed

from runtime.process import environment  # noqa: F401  # first: it sets what TensorFlow reads when it is imported

# isort: split
import tensorflow.compat.v1 as tf

from runtime.machine import session_config

NUM_DEVICES = 2
make_real_config = session_config.make_session_config


def make_session_config(*arguments: Any) -> tf.ConfigProto:
    """Return the settings of a task, with several CPUs."""
    config = make_real_config(*arguments)
    config.device_count["CPU"] = NUM_DEVICES
    return config


if __name__ == "__main__":
    with mock.patch.object(session_config, "make_session_config", make_session_config):
        runpy.run_module("distributed", run_name="__main__")
