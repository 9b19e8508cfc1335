"""How many threads, which devices and which peers a task's server and sessions use."""

import os

import tensorflow.compat.v1 as tf

from runtime.cluster.task import Task
from runtime.machine.gpus import choose_gpus


def make_session_config(task: Task, gpus: str = "none") -> tf.ConfigProto:
    """Return the settings that the sessions of a task and its server share; `gpus` is the flag of that name."""
    own_gpus = choose_gpus(task, gpus)
    # A worker talks only to its servers, so its sessions need not wait for other workers.
    jobs = [] if task.only_serves else sorted({f"/job:{server.job_name}" for server in task.servers})
    # By default each process takes as many threads as there are cores, and lets them spin while they wait for work.
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS
    num_threads = max(1, num_cores // task.num_tasks_on_host)
    # Rewriting the graph would double the time of the first run, and make no later run faster.
    graph_options = tf.GraphOptions()
    graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.ConfigProto(
        device_filters=[*jobs, task.device],
        intra_op_parallelism_threads=num_threads,
        inter_op_parallelism_threads=num_threads,
        experimental=tf.ConfigProto.Experimental(disable_thread_spinning=True),
        graph_options=graph_options,
        # An empty list would mean all GPUs. By default a task would also take all of their memory at once.
        device_count={"GPU": len(own_gpus)},
        gpu_options=tf.GPUOptions(allow_growth=True, visible_device_list=",".join(map(str, own_gpus))),
    )


def make_server_config(session_config: tf.ConfigProto) -> tf.ConfigProto:
    """Return the settings of a server: without filters, which it would add to those of any session with it."""
    config = tf.ConfigProto()
    config.CopyFrom(session_config)
    config.ClearField("device_filters")
    return config
