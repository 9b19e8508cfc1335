#!/usr/bin/env bash
#
# Train on a cluster of processes on this machine:
#
#   ./run_local_cluster.sh [--ps N] [--workers N] [--train_dir DIR] [--max_restarts N] [--no_isolation] [--locked]
#                          [--tensorboard] [any flag of distributed.py]
#
# Sets up .venv if needed, fetches MNIST, runs 1 ps and 2 workers by default, and shows the chief's output. PYTHON names
# the interpreter for .venv; --locked installs exactly the versions in requirements.lock. The output of each task is kept
# in TRAIN_DIR/logs; TRAIN_DIR is a new folder under runs/ by default. A task that dies is started again, 3 times at most
# by default. The exit status is 0 only if every task's was in the end. Ctrl-C ends them all. A terminal shows how far each
# task is, unless NO_COLOR is set. Where the system allows it, the cluster runs in a network of its own, which nothing
# outside can reach; --no_isolation turns that off. --tensorboard installs TensorBoard and shows the run with it, on
# localhost, for as long as this script runs.

# It runs on bash 3.2, which macOS has: no `wait -n`, no associative arrays, "${array[@]}" of an empty one is an error.

set -u

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here
readonly leave_secs=15 # how long tasks may take to end: after the chief has, or when told to

num_ps=1
num_workers=2
train_dir=""
data_dir=""
max_restarts=3
isolation=1
locked=""
tensorboard=""
flags=()
names=()    # of the tasks, such as worker-0
pids=()     # of the same, and so on
statuses=() # empty while one runs
restarts=() # how often each was started again
interrupted="" # the exit status that a signal asks for
tee_pid=""
display_pid=""
on_terminal="" # whether people look; standard output may be a file, but what reads a pipe may write to the same terminal
if [[ -t 2 && ! -p /dev/stdout && -z "${CI:-}${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then on_terminal=1; fi

say() { echo "run_local_cluster.sh: $*"; }

fail() {
  echo "error: $*" >&2
  exit 2
}

parse_arguments() {
  local name
  while (($#)); do
    name="${1%%=*}"
    case "$name" in
      -*) name="${name#-}" && name="${name#-}" ;; # distributed.py takes one dash or two
      *) name="" ;;                               # the value of the flag before it
    esac
    case "$name" in
      ps | workers | train_dir | data_dir | max_restarts)
        if [[ "$1" == *=* ]]; then
          set_option "$name" "${1#*=}"
        else
          (($# > 1)) || fail "--$name needs a value"
          set_option "$name" "$2"
          shift
        fi
        ;;
      job_name | task_index | ps_hosts | worker_hosts)
        fail "--$name is for this script to choose: say with --ps and --workers how many tasks there are"
        ;;
      no_isolation) isolation="" ;;
      locked) locked=1 ;;
      tensorboard) tensorboard=1 ;;
      no_tensorboard) tensorboard="" ;;
      help | h)
        sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      helpfull | helpshort | helpxml) # those of distributed.py
        python="$("$here/runtime/launch/venv.sh" requirements.txt)" || exit
        "$python" "$here/distributed.py" "$1"
        exit 0
        ;;
      *) flags+=("$1") ;;
    esac
    shift
  done
}

set_option() {
  # shellcheck disable=SC2088 # it is text here
  if [[ "$2" == "~"* ]]; then fail "--$1=$2: ~ is only understood by a shell, and only at the start of a word: write \$HOME"; fi
  case "$1" in
    train_dir)
      train_dir="$2"
      [[ "$2" != -* ]] || train_dir="./$2" # or commands would take it for an option
      ;;
    data_dir) data_dir="$2" flags+=("--data_dir=$2") ;;
    max_restarts)
      [[ "$2" =~ ^[0-9]{1,6}$ ]] || fail "--max_restarts is '$2', expected a number from 0"
      max_restarts="$2"
      ;;
    *)
      [[ "$2" =~ ^[1-9][0-9]?$ ]] || fail "--$1 is '$2', expected a number from 1 to 99"
      if [[ "$1" == ps ]]; then num_ps="$2"; else num_workers="$2"; fi
      ;;
  esac
}

# Join the words after the first with the first between them.
join() {
  local IFS="$1"
  shift
  echo "$*"
}

make_train_dir() {
  if [[ -z "$train_dir" ]]; then
    mkdir -p "$here/runs" || fail "$here/runs cannot be made; give --train_dir"
    train_dir="$here/runs/$(date +%Y-%m-%d_%H-%M-%S)"
    while ! mkdir "$train_dir" 2>/dev/null; do train_dir="${train_dir}_"; done
  fi
  mkdir -p "$train_dir/logs" || fail "--train_dir $train_dir cannot be made"
  said="$train_dir/logs/said-$$" # what the display, if there is one, shows
}

# TensorBoard only reads files. So it runs outside of the cluster's network, where a browser finds it. It ends by itself
# when this process does, which keeps its number whatever it becomes.
start_tensorboard() {
  if "$here/runtime/launch/venv.sh" ${on_terminal:+--progress} ${locked:+--locked} runtime/launch/tensorboard.txt >/dev/null; then
    (
      if [[ -n "$on_terminal" && -t 1 ]]; then exec >>"$said"; fi
      exec "$python" "$here/runtime/launch/board.py" "$train_dir" "$$" </dev/null 2>"$train_dir/logs/tensorboard.log"
    ) &
  else
    say "TensorBoard cannot be installed: this run goes on without"
  fi
}

# Keep other launchers out of the train directory, as long as this process or one of its tasks lives: their logs and
# events would be mixed.
lock_train_dir() {
  exec 9<"$train_dir/logs"
  "$python" "$here/runtime/launch/lock.py" 9 ||
    fail "--train_dir $train_dir is in use by another run: wait until all its processes have ended, or give another folder"
}

# A server of TensorFlow listens on every interface and runs whatever it is sent. So become this script again, but in a
# network that has nothing except a loopback interface of its own.
isolate() {
  local unshare=(unshare --user --map-root-user --net)
  PATH="$PATH:/usr/sbin:/sbin" # where ip is, for users other than root
  if "${unshare[@]}" ip link set lo up 2>/dev/null; then
    # shellcheck disable=SC2016 # the inner shell expands these
    exec "${unshare[@]}" sh -c 'ip link set lo up && exec "$0" "$@"' \
      "$BASH" "$here/${BASH_SOURCE[0]##*/}" "$@" --train_dir "$train_dir" --no_isolation --no_tensorboard
  fi
  say "no private network here (it takes unshare and ip): whoever reaches this machine's ports can use the cluster"
}

# start_display TASK...: let a process draw how far the tasks are. Meanwhile it also shows what would be shown here: that
# goes into a file without a name, which both read from the same position on.
start_display() {
  local folder
  folder="$(cd -- "$train_dir" && pwd)" || return
  exec 3>&1 4>&2 2>>"$said"
  exec 5<"$said"
  rm -f "$said"
  if [[ -t 3 ]]; then exec >&2; fi
  (
    trap '' INT # it stays until the tasks have ended
    cd "$here" && exec "$python" -m runtime.display "$folder" "$@" <&5 >&3 2>&4
  ) &
  display_pid="$!"
}

# Show what a display that has ended, for whatever reason, has not shown.
show_rest() { if [[ -n "$display_pid" ]] && ! kill -0 "$display_pid" 2>/dev/null; then cat <&5 >&3; fi; }

stop_display() {
  [[ -n "$display_pid" ]] || return 0
  kill "$display_pid" 2>/dev/null
  wait "$display_pid"
  show_rest
  exec 1>&3 2>&4
  display_pid=""
}

start_cluster() {
  local addresses index port
  addresses=()
  for port in $("$python" "$here/runtime/launch/ports.py" $((num_ps + num_workers))); do addresses+=("localhost:$port"); done
  ps_hosts="$(join , "${addresses[@]:0:num_ps}")"
  worker_hosts="$(join , "${addresses[@]:num_ps}")"
  say "ps at $ps_hosts, workers at $worker_hosts, logs in $train_dir/logs"
  for ((index = 0; index < num_ps; index++)); do names+=("ps-$index"); done
  for ((index = 0; index < num_workers; index++)); do names+=("worker-$index"); done
  [[ -z "$on_terminal" ]] || start_display "${names[@]}"
  for ((index = 0; index < ${#names[@]}; index++)); do
    restarts[index]=0
    start_task "$index"
  done
}

# start_task TASK: run a task in the background, with what it says in its log, and the chief's shown here too.
start_task() {
  local name="${names[$1]}"
  local log="$train_dir/logs/$name.log" output
  output="$log"
  if [[ "$name" == worker-0 ]]; then
    output="$work_dir/chief"
    if [[ -n "$tee_pid" ]]; then wait "$tee_pid"; else mkfifo "$output"; fi
    (
      trap '' HUP # as below
      exec tee -a "$log" <"$output"
    ) &
    tee_pid="$!"
  fi
  (
    trap '' HUP # when the terminal closes, this script stops the tasks in their order
    exec "$python" "$here/distributed.py" --job_name="${name%-*}" --task_index="${name#*-}" --ps_hosts="$ps_hosts" \
      --worker_hosts="$worker_hosts" --train_dir="$train_dir" ${flags[@]+"${flags[@]}"} </dev/null >>"$output" 2>&1
  ) &
  pids[$1]="$!"
  statuses[$1]=""
}

# Fill in the statuses of tasks that have ended.
reap() {
  local task
  for ((task = 0; task < ${#pids[@]}; task++)); do
    if [[ -z "${statuses[task]}" ]] && ! kill -0 "${pids[task]}" 2>/dev/null; then
      wait "${pids[task]}" 2>/dev/null # without the shell's own words about it
      statuses[task]=$?
    fi
  done
}

# Print the names of the tasks that match the pattern $1 and still run.
running() {
  local task
  for ((task = 0; task < ${#pids[@]}; task++)); do
    # shellcheck disable=SC2053 # it is a pattern
    if [[ -z "${statuses[task]}" && "${names[task]}" == $1 ]]; then echo "${names[task]}"; fi
  done
}

# Return when every task has ended with 0. Exit when one cannot, or when none may go on.
supervise() {
  local task deadline
  deadline=""
  while :; do
    if [[ -n "$interrupted" ]]; then
      say "interrupted, ending every task"
      exit "$interrupted"
    fi
    reap
    show_rest
    for ((task = 0; task < ${#pids[@]}; task++)); do
      if [[ -n "${statuses[task]}" && "${statuses[task]}" != 0 ]]; then
        restart "$task" "$deadline"
      elif [[ -z "${statuses[task]}" && -n "$deadline" ]] && ((SECONDS > deadline)); then
        give_up "$task" 1 "did not end within $leave_secs s of the chief"
      elif [[ "${names[task]}" == worker-0 && -n "${statuses[task]}" ]]; then
        deadline="${deadline:-$((SECONDS + leave_secs))}"
      fi
    done
    [[ -n "$(running '*')" ]] || return 0
    sleep 0.2
  done
}

# restart TASK CHIEF_HAS_FINISHED: start a dead task again, unless that is of no use.
restart() {
  local status="${statuses[$1]}"
  if ((status == 2)); then
    give_up "$1" 2 "cannot use what it was given, or save what it has made"
  elif [[ -n "$2" ]] || ((restarts[$1] == max_restarts)); then
    give_up "$1" "$status" "ended with status $status"
  fi
  restarts[$1]=$((restarts[$1] + 1))
  say "${names[$1]} ended with status $status: starting it again (${restarts[$1]} of $max_restarts)"
  start_task "$1"
}

# give_up TASK STATUS WHY: end the whole run because of one task.
give_up() {
  local log="$train_dir/logs/${names[$1]}.log"
  end_tasks
  {
    echo "error: ${names[$1]} $3; all tasks were ended. The end of $log:"
    tail -n 15 "$log"
  } >&2
  exit "$2"
}

# End the tasks that still run: first those that need others to finish a step, the chief and the ps.
end_tasks() {
  local pattern
  for pattern in 'worker-[1-9]*' worker-0 'ps-*'; do
    signal_tasks TERM "$pattern"
    await_tasks "$pattern" || signal_tasks KILL "$pattern"
    await_tasks "$pattern"
  done
  if [[ -n "$tee_pid" ]]; then wait "$tee_pid"; fi
  stop_display
}

# signal_tasks SIGNAL PATTERN: send a signal to the running tasks whose names match.
signal_tasks() {
  local task
  for ((task = 0; task < ${#pids[@]}; task++)); do
    # shellcheck disable=SC2053 # it is a pattern
    if [[ -z "${statuses[task]}" && "${names[task]}" == $2 ]]; then kill "-$1" "${pids[task]}" 2>/dev/null; fi
  done
}

# Wait, for $leave_secs at most, until no task whose name matches the pattern $1 runs.
await_tasks() {
  local deadline=$((SECONDS + leave_secs))
  while reap && [[ -n "$(running "$1")" ]]; do
    ((SECONDS <= deadline)) || return 1
    sleep 0.1
  done
}

clean_up() {
  trap '' INT TERM HUP # nothing may interrupt this
  end_tasks
  rm -rf "$work_dir"
}

parse_arguments "$@"
python="$("$here/runtime/launch/venv.sh" ${on_terminal:+--progress} ${locked:+--locked} requirements.txt)" || exit
"$python" "$here/runtime/data/download.py" ${on_terminal:+--progress} ${data_dir:+"$data_dir"} || exit
make_train_dir
[[ -z "$tensorboard" ]] || start_tensorboard
[[ -z "$isolation" ]] || isolate "$@"
lock_train_dir
work_dir="$(mktemp -d)" || exit
trap clean_up EXIT
trap 'interrupted=130' INT
trap 'interrupted=143' TERM HUP
start_cluster
supervise
