"""`python runtime/launch prepare|cluster ARGUMENT...` does what the module of that name in this folder does."""

import signal

# Ctrl-C ends this process at once, without the traceback of an import, until there is something to end in order.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may ignore it
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import importlib
import pathlib
import sys

sys.path[0] = str(pathlib.Path(__file__).parents[2])
packages = importlib.import_module("runtime.process.packages")
del sys.path[0]  # so nobody's file beside distributed.py takes the place of a module of Python's, until it is told
with packages.telling_what_is_missing():
    stage = importlib.import_module(f"runtime.launch.{sys.argv.pop(1)}")
stage.main()
