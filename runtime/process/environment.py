"""What must be set before TensorFlow is imported, and the import itself: import this module first."""

import os
import sys

# No file beside distributed.py takes the place of a module of Python's while TensorFlow is imported. Then
# `runtime/model/user_dir.py` tells of it.
_path, _project = sys.path.copy(), os.path.realpath(os.path.join(__file__, *3 * [os.pardir]))
sys.path[:] = [entry for entry in _path if os.path.realpath(entry) != _project]

import gc
import signal
import warnings

from runtime.process.packages import telling_what_is_missing

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last one comes when a terminal closes

# What a user has set, here or below, stays.
_GRPC_OPTIONS = {
    # A web proxy must not stand between the tasks.
    "grpc.enable_http_proxy": 0,
    # gRPC may wait up to 2 minutes between two attempts to reach a peer; so a restarted task is found within 0.4 s.
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 400,
    # It may have another address now: by default gRPC would look its name up again after 30 s.
    "grpc.dns_min_time_between_resolutions_ms": 1000,
    # TCP would go on sending to a host that is gone for a quarter of an hour; with keepalive, it gives up after 20 s.
    # Pings themselves are rare, since a server takes frequent ones for an attack.
    "grpc.keepalive_time_ms": 86400000,
    "grpc.keepalive_timeout_ms": 20000,
}
_DEFAULTS = {
    # A call to a lost ps fails at once. By default, closing a session would wait until that ps is back.
    "GRPC_FAIL_FAST": "true",
    # As TensorFlow's own gRPC looks names up, in /etc/hosts first. By default ours would ask the name server even for a
    # name that is there, for its IPv6 address, and wait for one that does not answer.
    "GRPC_DNS_RESOLVER": "native",
    # What a user's file forks uses no connection of ours. By default gRPC makes its threads anew in it, and often hangs
    # or crashes there.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # Hide what the C++ code logs below an error: our own log lines say it better. No setting hides the few lines that
    # its libraries log while they are loaded, about oneDNN and CUDA: that is before they read this one.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Keras takes a tenth of the import, and nothing here needs it. TensorFlow skips the legacy Keras where it is not
    # installed; it never skips the new one.
    "TF_USE_LEGACY_KERAS": "1",
}

with telling_what_is_missing():
    from runtime.process import limits
# What another gRPC knew, or knows, would make this one abort.
_unknown = {*os.environ.get("GRPC_POLL_STRATEGY", "all").split(",")} - {"all", "epoll1", "poll"}
_of_grpc = f"GRPC_POLL_STRATEGY has {min(_unknown)!r}, which this gRPC does not know: unset it" if _unknown else ""
if _why := limits.why_too_low() or _of_grpc:
    print(f"error: {_why}", file=sys.stderr)
    raise SystemExit(2)

# One order of sets in all tasks and runs: a model may make unnamed variables in such an order. Python must start anew.
if "PYTHONHASHSEED" not in os.environ and os.path.basename(sys.argv[0]) == "distributed.py":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)

_given = [_option for _option in os.environ.get("TF_GRPC_DEFAULT_OPTIONS", "").split(",") if _option]
_given_names = {_option.partition("=")[0].strip() for _option in _given}
_missing = [f"{_name}={_value}" for _name, _value in _GRPC_OPTIONS.items() if _name not in _given_names]
os.environ["TF_GRPC_DEFAULT_OPTIONS"] = ",".join([*_given, *_missing])

# Until there is something to end in order, a signal ends this process at once. The system does that, even while the
# import keeps Python busy, and without the traceback of Ctrl-C. But it spares process 1 of a container.
_raises_interrupt = signal.getsignal(signal.SIGINT) is signal.default_int_handler
_ending = signal.SIG_DFL if os.getpid() != 1 else lambda number, _: os._exit(128 + number)
for _number in STOP_SIGNALS:
    if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler):  # not where a shell ignores it
        signal.signal(_number, _ending)

# What the import makes stays alive. Without a pause, the garbage collector would search it again and again, for half a
# second of every start.
gc.disable()
with telling_what_is_missing():
    import tensorflow.compat.v1  # the environment is read here

gc.freeze()
gc.enable()
sys.path[:] = _path
if _raises_interrupt and _ending is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as other importers expect


def choose_behavior() -> None:
    """Set what this program counts on, once a user's files, which may set something else, are imported."""
    global has_dimensions
    warnings.filterwarnings("ignore", message=".* is deprecated")  # as TensorFlow says of its layers
    v1 = tensorflow.compat.v1
    has_dimensions = not isinstance(v1.TensorShape([1])[0], int)
    v1.disable_eager_execution()
    v1.disable_control_flow_v2()  # inside a loop of version 2, an optimizer cannot make its state
    v1.enable_resource_variables()
    v1.enable_v2_tensorshape()
    v1.enable_tensor_equality()


has_dimensions = False  # whether the user's files take the size of a shape for a `Dimension`, with a `value`
