# shellcheck shell=bash
# Which Docker daemon the lab uses; source it after lib.sh. A daemon that is there and can run privileged containers is used as it is.
# Otherwise the lab starts one of its own: own socket, bridge, addresses and data, and a runtime that manages with the capabilities
# that the machine has. It runs beside the other daemons of the machine, and never replaces them.
DOCKER_DIR=$LAB/docker
DOCKER_SOCKET=$DOCKER_DIR/sock
DOCKER_BRIDGE=gemel0

# use_docker points docker and kind at the daemon in use; false if there is none.
use_docker() {
  if own_docker_pid >/dev/null; then
    export DOCKER_HOST=unix://$DOCKER_SOCKET
  fi
  docker info >/dev/null 2>&1
}

# own_docker_pid: the process id of the lab's own daemon, if it runs. A pid file may outlive its process, so the command line counts.
own_docker_pid() {
  local pid
  pid=$(cat "$DOCKER_DIR/pid" 2>/dev/null) || return 1
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "^[^ ]*dockerd .*$DOCKER_DIR/daemon.json" || return 1
  echo "$pid"
}

# can_run_privileged: an image of one static file, and a container of it.
can_run_privileged() {
  docker image inspect gemel.test/probe:dev >/dev/null 2>&1 ||
    tar -C "$LAB/bin" -c pause | docker import -c 'ENTRYPOINT ["/pause"]' - gemel.test/probe:dev >/dev/null
  docker run --rm --privileged gemel.test/probe:dev -v >/dev/null 2>&1
}

ensure_docker() {
  need docker docker.io
  if use_docker && can_run_privileged; then return; fi
  unset DOCKER_HOST
  need dockerd docker.io
  need containerd containerd
  need runc runc
  need iptables iptables
  timed dockerd start_docker
  use_docker && can_run_privileged && return
  echo "Docker cannot run privileged containers here; its log: $LAB/logs/dockerd.log" >&2
  return 1
}

start_docker() {
  local waited fd
  mkdir -p "$DOCKER_DIR"
  # dockerd sets it to DROP; a daemon that was killed has left the first answer here
  [ -e "$DOCKER_DIR/forward" ] || iptables -S FORWARD 2>/dev/null | grep -m1 '^-P' >"$DOCKER_DIR/forward" || true
  if ! ip link show "$DOCKER_BRIDGE" >/dev/null 2>&1; then
    # With "bridge": "none" a daemon would remove docker0, which is another's.
    ip link add "$DOCKER_BRIDGE" type bridge
    ip addr add 172.27.0.1/24 dev "$DOCKER_BRIDGE"
    ip link set "$DOCKER_BRIDGE" up
  fi
  cat >"$DOCKER_DIR/daemon.json" <<EOF
{
  "data-root": "$DOCKER_DIR/data",
  "exec-root": "$DOCKER_DIR/exec",
  "pidfile": "$DOCKER_DIR/pid",
  "hosts": ["unix://$DOCKER_SOCKET"],
  "bridge": "$DOCKER_BRIDGE",
  "default-address-pools": [{"base": "172.28.0.0/14", "size": 16}],
  "runtimes": {"gemel-lab": {"path": "$LAB/bin/gemel-lab-runtime"}},
  "default-runtime": "gemel-lab"
}
EOF
  # It outlives the process that starts it, so it must not keep open what that has open: an inherited lock would stay taken.
  (
    for fd in /proc/"$BASHPID"/fd/*; do
      fd=${fd##*/}
      case $fd in 0 | 1 | 2 | 255) ;; *) exec {fd}>&- ;; esac
    done
    exec setsid nohup dockerd --config-file "$DOCKER_DIR/daemon.json" >"$LAB/logs/dockerd.log" 2>&1 </dev/null
  ) &
  for ((waited = 0; waited < 120; waited++)); do
    docker -H "unix://$DOCKER_SOCKET" info >/dev/null 2>&1 && return
    sleep 0.5
  done
  tail -n 20 "$LAB/logs/dockerd.log" >&2
  return 1
}

# stop_docker ends the lab's own daemon and takes back what it did to the machine's network. Its data stays: images are kept there.
stop_docker() {
  local pid waited policy
  pid=$(own_docker_pid) || return 0
  docker -H "unix://$DOCKER_SOCKET" network rm kind >/dev/null 2>&1 || true # its bridge would stay
  kill "$pid"
  for ((waited = 0; waited < 60; waited++)); do
    [ -d "/proc/$pid" ] || break
    sleep 0.5
  done
  ! [ -d "/proc/$pid" ] || { echo "dockerd (process $pid) does not end" >&2; return 1; }
  ip link del "$DOCKER_BRIDGE" 2>/dev/null || true
  policy=$(cat "$DOCKER_DIR/forward" 2>/dev/null || true)
  # shellcheck disable=SC2086 # "-P FORWARD ACCEPT" is three words
  [ -z "$policy" ] || iptables $policy
  rm -f "$DOCKER_DIR/forward"
}
