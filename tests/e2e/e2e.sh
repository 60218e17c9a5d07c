# shellcheck shell=bash
# The command ./dev e2e. ./dev sources this file after deploy/image.sh, and it uses the settings and helpers of both.

readonly E2E_PACKAGES=(docker.io containerd runc iptables jq etcd-server catatonit openssl)
readonly KUBERNETES_BUILD_PACKAGES=(golang-go make rsync jq)

# Sets KUBERNETES to the folder of the cluster's programs. Debian has no package of them, but has their source.
build_kubernetes() {
  KUBERNETES="$CACHE/kubernetes-1.20.2"
  [[ ! -e $KUBERNETES ]] || return 0
  apt_install kubernetes "${KUBERNETES_BUILD_PACKAGES[@]}"
  step kubernetes "Building Kubernetes 1.20 from Debian's source (once per user)" tests/e2e/kubernetes.sh "$KUBERNETES"
}

# Builds the images that the cluster runs, with a dockerd that does not change the machine's network.
build_images() {
  local version=$1 folder end=$(( SECONDS + 3600 ))
  folder=$(mktemp -d)
  DOCKER_HOST="unix://$folder/docker.sock"
  export DOCKER_HOST PATH="/usr/bin:$PATH"  # Debian's docker client includes the builder.
  /usr/sbin/dockerd --storage-driver=overlay2 --data-root="$CACHE/e2e" --exec-root="$folder/exec" \
    --pidfile="$folder/docker.pid" --host="$DOCKER_HOST" --bridge=none --iptables=false >"$LOGS/e2e-docker.log" 2>&1 &
  # shellcheck disable=SC2064
  trap "kill $!; wait $! || true; rm -rf '$folder'" EXIT
  until timeout 600 docker info >/dev/null 2>&1; do
    if (( SECONDS > end )) || ! kill -0 $! 2>/dev/null; then
      die "dockerd does not serve; its log is $LOGS/e2e-docker.log"
    fi
    sleep 0.1
  done
  # shellcheck disable=SC2119  # without an argument: the image for CPUs
  (image)
  printf '%s\n' 'FROM scratch' 'COPY catatonit /' 'ENTRYPOINT ["/catatonit", "-P"]' |
    docker build -q -t aft-e2e-pause:1 -f - /usr/bin
  printf '%s\n' "FROM aft-serve:$version" 'LABEL e2e=next' | docker build -q -t "aft-serve:$version-next" -
  printf '%s\n' "FROM aft-serve:$version" 'CMD ["--config=/etc/aft/none.textproto"]' |
    docker build -q -t "aft-serve:$version-bad" -
}

e2e() {
  local version
  (( EUID == 0 )) || die "./dev e2e needs root"
  setup
  apt_install e2e "${E2E_PACKAGES[@]}"
  fetch_kubernetes
  build_kubernetes
  version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  # There must be no `||` after this: errexit would have no effect, and a failed build would run the old images.
  (build_images "$version")
  # Changes of the daemons to the network, mounts, processes and fixed folders disappear when these namespaces end.
  # shellcheck disable=SC2016
  exec unshare --net --mount --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
    for folder in /run /var/log /var/lib; do mount -t tmpfs e2e "$folder"; done
    ip link set lo up
    exec catatonit -- /usr/bin/python3 -B tests/e2e/e2e.py "$@"' \
    bash "$KUBERNETES" "$AFT_KUBERNETES/kubectl" "$CACHE/e2e" "$version"
}
