# `cmake --install build/default --prefix DIR`: a folder that runs wherever Debian's gRPC is installed,
# as the container image does. bin/ the programs, lib/ what a CPU program needs of LibTorch,
# share/aft-serve/ the services' descriptors.
foreach(program aft-server aftctl aftload aft-convert)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
    install(TARGETS ${program} RUNTIME DESTINATION bin)
  endif()
endforeach()

install(FILES "${CMAKE_BINARY_DIR}/share/aft-serve/aft.pb" DESTINATION share/aft-serve)

# The libraries find each other beside themselves: their RPATH ends in $ORIGIN.
if(AFT_TORCH)
  cmake_path(GET LibTorch_torch_cpu_LIBRARY PARENT_PATH _torch_lib)
  install(FILES
    "${LibTorch_torch_cpu_LIBRARY}" "${LibTorch_c10_LIBRARY}" "${_torch_lib}/libgomp.so.1"
    "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcudart.so.13" "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcupti.so.13"
    DESTINATION lib)
  # Of the rest of CUDA (cuBLAS and others) the host has its own, where the loader finds it.
  if(AFT_CUDA STREQUAL "ON")
    install(FILES "${LibTorch_torch_cuda_LIBRARY}" "${LibTorch_c10_cuda_LIBRARY}" DESTINATION lib)
  endif()
endif()
