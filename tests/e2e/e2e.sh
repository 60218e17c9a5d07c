# shellcheck shell=bash
# ./dev e2e: sourced by ./dev, whose settings and helpers it uses, behind deploy/image.sh.

readonly E2E_PACKAGES=(docker.io containerd runc iptables jq etcd-server catatonit openssl)
readonly KUBERNETES_BUILD_PACKAGES=(golang-go make rsync jq)

# KUBERNETES: the cluster's programs. Debian has no package of them, but their source.
build_kubernetes() {
  KUBERNETES="$CACHE/kubernetes-1.20.2"
  [[ ! -e $KUBERNETES ]] || return 0
  apt_install kubernetes "${KUBERNETES_BUILD_PACKAGES[@]}"
  step kubernetes "Building Kubernetes 1.20 from Debian's source (once per user)" tests/e2e/kubernetes.sh "$KUBERNETES"
}

# What the cluster runs, built by a dockerd that leaves the machine's network as it is.
build_images() {
  local version=$1 folder waited
  folder=$(mktemp -d)
  DOCKER_HOST="unix://$folder/docker.sock"
  export DOCKER_HOST PATH="/usr/bin:$PATH"  # Debian's client has the builder inside.
  /usr/sbin/dockerd --storage-driver=overlay2 --data-root="$CACHE/e2e" --exec-root="$folder/exec" \
    --pidfile="$folder/docker.pid" --host="$DOCKER_HOST" --bridge=none --iptables=false >"$LOGS/e2e-docker.log" 2>&1 &
  # shellcheck disable=SC2064
  trap "kill $!; wait $! || true; rm -rf '$folder'" EXIT
  for (( waited = 0; waited < 600; ++waited )); do
    if docker info >/dev/null 2>&1; then break; fi
    sleep 0.1
  done
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
  (build_images "$version")  # Nothing behind it: with `||` a build that fails would leave the images of before to be run.
  # What the daemons do to the network, mounts and processes, and what they keep in fixed places, ends with them.
  # shellcheck disable=SC2016
  exec unshare --net --mount --pid --fork --kill-child --mount-proc bash -euo pipefail -c '
    for folder in /run /var/log /var/lib; do mount -t tmpfs e2e "$folder"; done
    ip link set lo up
    exec catatonit -- /usr/bin/python3 -B tests/e2e/e2e.py "$@"' \
    bash "$KUBERNETES" "$AFT_KUBERNETES/kubectl" "$CACHE/e2e" "$version"
}
