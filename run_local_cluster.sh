#!/usr/bin/env bash
#
# Train on a cluster of processes on this machine:
#
#   ./run_local_cluster.sh [--ps N] [--workers N] [--user_dir DIR] [--train_dir DIR] [--max_restarts N]
#                          [--no_isolation] [--locked] [--tensorboard] [--prepare] [any flag of distributed.py]
#
# Sets up .venv if needed, fetches MNIST, runs 1 ps and 2 workers by default, and shows the chief's output or, on a
# terminal, the progress of each task, unless NO_COLOR is set. --user_dir, or USER_DIR in the environment, names another
# folder with model.py and mnist_input.py. PYTHON names the interpreter for .venv, VENV_DIR a folder to use instead;
# --locked installs exactly the versions in requirements.lock. The output of each task is kept in TRAIN_DIR/logs;
# TRAIN_DIR is a new folder under runs/ by default. A task that dies is started again, 3 times at most by default. The
# exit status is 0 only if every task ended with 0. Ctrl-C saves the model and stops all tasks; Ctrl-\ ends them at
# once. Where the system allows it, the cluster runs in a network of its own, which nothing outside can reach;
# --no_isolation turns that off.
# --prepare only sets up .venv and fetches the examples, and trains nothing.
# --tensorboard installs TensorBoard and shows the run with it, on localhost, for as long as this script runs.

if [ -z "${BASH_VERSION:-}" ]; then exec bash "$0" "$@"; fi # it was given to another shell
set -eu

trap 'exit 131' QUIT # bash would ignore it
script="$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")" # old systems know no -f
here="$(CDPATH="" cd "$(dirname "$script")" && pwd)"
locked=""
for argument; do
  case "$argument" in
    -h | -help | --h | --help)
      sed -n '3,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit
      ;;
    -locked | --locked | -locked=[tT1]* | --locked=[tT1]*) locked=--locked ;;
  esac
done
unset PYTHONHOME PYTHONINSPECT # of another Python, as some sites set it; and what ends in a prompt
python="$("$here/runtime/launch/venv.sh" ${locked:+"$locked"} requirements.txt)" || exit
exec "$python" "$here/runtime/launch" prepare "$@"
