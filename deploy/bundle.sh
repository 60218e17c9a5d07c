# shellcheck shell=bash
# ./dev bundle: sourced by ./dev, whose settings and helpers it uses.

readonly BUNDLE_PROGRAMS=(
  aft-server aft-convert aftload aftctl cuda_kernels_gpu_test gpu_model_gpu_test cuda_kernels_bench engine_bench
)

# A GPU host already has these: the C and C++ runtime, and PyTorch with its CUDA libraries.
readonly OF_THE_HOST='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|lib(gomp|torch|c10|cu[a-z]|nv|nccl))'

# copy_needed FILE: the shared libraries that FILE needs and a GPU host lacks, into the bundle's lib/.
copy_needed() {
  local name path
  while read -r name; do
    [[ ! $name =~ $OF_THE_HOST && ! -e $BUNDLE/lib/$name ]] || continue
    path=$(ldconfig -p | awk -v name="$name" '$1 == name && !found++ { print $NF }')
    [[ -n $path ]] || die "bundle: ${1##*/} needs $name, which is not installed here"
    install -m 644 "$path" "$BUNDLE/lib/$name"
    copy_needed "$BUNDLE/lib/$name"
  done < <(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
}

bundle() {
  local program
  BUNDLE=build/gpu-bundle
  apt_install bundle xz-utils
  build bundle "${BUNDLE_PROGRAMS[@]}"
  rm -rf "$BUNDLE" "$BUNDLE.tar.xz"
  mkdir -p "$BUNDLE/bin" "$BUNDLE/lib"
  for program in "${BUNDLE_PROGRAMS[@]}"; do
    strip -o "$BUNDLE/bin/$program" "build/bundle/bin/$program"
    copy_needed "$BUNDLE/bin/$program"
  done
  tar -C "$BUNDLE" -cf - . | xz -T0 -9 >"$BUNDLE.tar.xz"
  say "$BUNDLE ($(du -sh "$BUNDLE" | cut -f1)) and $BUNDLE.tar.xz ($(du -h "$BUNDLE.tar.xz" | cut -f1))"
  say "A GPU host also needs python3 with torch 2.11.0; then run there: tests/gpu/run.sh parity"
}
