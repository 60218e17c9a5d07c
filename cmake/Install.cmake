# `cmake --install build/default --prefix DIR --component server`: a folder that runs wherever Debian's gRPC is
# installed, as the container image does. bin/ the programs, lib/ what a CPU program needs of LibTorch, with the
# wheels' own metadata and licences, share/aft-serve/ the services' descriptors. Component `tools`: the other
# programs, into the same folder.
function(aft_install component)
  foreach(program ${ARGN})
    if(TARGET ${program})
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
      install(TARGETS ${program} RUNTIME DESTINATION bin COMPONENT ${component})
    endif()
  endforeach()
endfunction()
aft_install(server aft-server aftctl)
aft_install(tools aftload aft-convert aft-train)

install(FILES "${CMAKE_BINARY_DIR}/share/aft-serve/aft.pb" DESTINATION share/aft-serve COMPONENT server)

# The libraries find each other beside themselves: their RPATH ends in $ORIGIN.
if(AFT_TORCH)
  cmake_path(GET LibTorch_torch_cpu_LIBRARY PARENT_PATH _torch_lib)
  set(_libraries
    "${LibTorch_torch_cpu_LIBRARY}" "${LibTorch_c10_LIBRARY}" "${_torch_lib}/libgomp.so.1"
    "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcudart.so.13" "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcupti.so.13")
  # Of the rest of CUDA (cuBLAS and others) the host has its own, where the loader finds it.
  if(AFT_CUDA STREQUAL "ON")
    list(APPEND _libraries "${LibTorch_torch_cuda_LIBRARY}" "${LibTorch_c10_cuda_LIBRARY}"
      "${_torch_lib}/libtorch_nvshmem.so")  # libtorch_cuda.so asks for it.
  endif()
  install(FILES ${_libraries} DESTINATION lib COMPONENT server)
  # --strip is for our own targets alone; a fifth of libtorch_cpu.so are symbols for debuggers.
  list(TRANSFORM _libraries REPLACE ".*/" "")
  install(CODE "
    if(CMAKE_INSTALL_DO_STRIP)
      foreach(library ${_libraries})
        execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/\${library}\"
          COMMAND_ERROR_IS_FATAL ANY)
      endforeach()
    endif()" COMPONENT server)
  foreach(wheel torch nvidia_cuda_runtime nvidia_cuda_cupti)
    file(GLOB _metadata "${LIBTORCH_ROOT}/../${wheel}-*.dist-info")
    install(DIRECTORY ${_metadata} DESTINATION lib/wheels COMPONENT server PATTERN RECORD EXCLUDE)
  endforeach()
endif()
