# Finds LibTorch inside an installed `torch` wheel, without the wheel's own CMake files: those require
# nvcc, fail with CMake 3.25 and C++20, and overwrite CUDA flags.
#
# Input   LIBTORCH_ROOT   folder `.../site-packages/torch` (cache variable or environment)
# Output  LibTorch::cpu   headers, libtorch_cpu, libc10. A CPU program must not link libtorch.so: it
#                         needs libtorch_cuda and with it the whole CUDA stack.
#         LibTorch::cuda  adds libtorch_cuda and libc10_cuda; only when the wheel has them.
set(LIBTORCH_ROOT "$ENV{LIBTORCH_ROOT}" CACHE PATH "Folder of the installed torch wheel (.../site-packages/torch)")

# The cached paths may be of another LIBTORCH_ROOT, so they are searched again each time.
unset(LibTorch_INCLUDE_DIR CACHE)
find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS "${LIBTORCH_ROOT}/include" NO_DEFAULT_PATH)
foreach(lib c10 torch_cpu c10_cuda torch_cuda)
  unset(LibTorch_${lib}_LIBRARY CACHE)
  find_library(LibTorch_${lib}_LIBRARY ${lib} PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_${lib}_LIBRARY)
endforeach()

if(EXISTS "${LIBTORCH_ROOT}/version.py")
  file(STRINGS "${LIBTORCH_ROOT}/version.py" _version_line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${_version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "set LIBTORCH_ROOT to the torch folder of the installed wheel, as ./dev build does")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  # We use -idirafter and not -isystem, because the wheel has old copies of the headers of protobuf and fmt.
  # In a file that includes both LibTorch and gRPC the headers of the system must be found first. SHELL: splits at
  # blanks, so the paths are in quotes.
  target_compile_options(LibTorch::cpu INTERFACE
    "SHELL:-idirafter \"${LibTorch_INCLUDE_DIR}\""
    "SHELL:-idirafter \"${LibTorch_INCLUDE_DIR}/torch/csrc/api/include\"")
  # Operators are included one by one (ATen/ops/*.h), which saves seconds per file.
  target_compile_definitions(LibTorch::cpu INTERFACE AT_PER_OPERATOR_HEADERS)
  # --no-as-needed: operators register themselves in static initialisers that nothing references.
  # --allow-shlib-undefined: libraries that only the wheel itself needs may be absent at link time.
  target_link_options(LibTorch::cpu INTERFACE "LINKER:--allow-shlib-undefined")
  target_link_libraries(LibTorch::cpu INTERFACE
    "-Wl,--push-state,--no-as-needed" "${LibTorch_torch_cpu_LIBRARY}" "-Wl,--pop-state" "${LibTorch_c10_LIBRARY}")
  if(LibTorch_torch_cuda_LIBRARY)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      "-Wl,--push-state,--no-as-needed" "${LibTorch_torch_cuda_LIBRARY}" "-Wl,--pop-state" "${LibTorch_c10_cuda_LIBRARY}")
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR)
