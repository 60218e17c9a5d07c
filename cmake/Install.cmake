# `cmake --install build/default --prefix DIR --component server` makes a folder that runs on any machine with
# Debian's gRPC, for example in the container image. bin/ has the programs. lib/ has the libraries of LibTorch that
# they need, with the metadata and licences of the wheels. share/aft-serve/ has the descriptors of the services.
# share/man and the folders of the shells have the manual pages and completions. The component `tools` adds the
# other programs to the same folder.
function(aft_install component)
  foreach(program ${ARGN})
    if(TARGET ${program})
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
      install(TARGETS ${program} RUNTIME DESTINATION bin COMPONENT ${component})
      # Each program prints its own manual page and completions.
      install(CODE "
        set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
        file(MAKE_DIRECTORY \"\${share}/man/man1\" \"\${share}/bash-completion/completions\"
          \"\${share}/zsh/site-functions\")
        foreach(page --man-page:man/man1/${program}.1
            --completion=bash:bash-completion/completions/${program}
            --completion=zsh:zsh/site-functions/_${program})
          string(REPLACE \":\" \";\" page \"\${page}\")
          list(GET page 0 flag)
          list(GET page 1 file)
          execute_process(COMMAND \"$<TARGET_FILE:${program}>\" \${flag}
            OUTPUT_FILE \"\${share}/\${file}\" RESULT_VARIABLE failed ERROR_QUIET)
          if(failed)  # A program for GPUs may not start here.
            message(STATUS \"no \${file}: ${program} does not start on this machine\")
            file(REMOVE \"\${share}/\${file}\")
          endif()
        endforeach()" COMPONENT ${component})
    endif()
  endforeach()
endfunction()
aft_install(server aft-server aftctl)
aft_install(tools aftload aft-convert aft-train)

install(FILES "${CMAKE_BINARY_DIR}/share/aft-serve/aft.pb" DESTINATION share/aft-serve COMPONENT server)
install(FILES LICENSE DESTINATION share/doc/aft-serve COMPONENT server)

# Component `client`: the C++ client for other projects, which find it with find_package(AftClient) and link
# AftClient::client. Its headers are in include/aft-client, so that they include each other as they do here, and no
# folder of a common name is added to include/.
set(_headers include/aft-client)
install(TARGETS aft_client aft_base aft_proto aft_messages aft_grpc EXPORT AftClientTargets
  ARCHIVE DESTINATION lib COMPONENT client INCLUDES DESTINATION ${_headers})
foreach(_part client base proto messages grpc)
  set_target_properties(aft_${_part} PROPERTIES EXPORT_NAME ${_part})
endforeach()
foreach(_header base/mutex.h client/lib/address.h client/lib/aft_client.h client/lib/call_options.h
    client/lib/cancel_token.h client/lib/error_details.h client/lib/generate_listener.h)
  cmake_path(GET _header PARENT_PATH _folder)
  install(FILES "${CMAKE_SOURCE_DIR}/${_header}" DESTINATION ${_headers}/${_folder} COMPONENT client)
endforeach()
# The messages; the stubs stay inside the library.
install(DIRECTORY "${CMAKE_BINARY_DIR}/proto/" DESTINATION ${_headers} COMPONENT client FILES_MATCHING
  PATTERN "*.pb.h" PATTERN "*.grpc.pb.h" EXCLUDE
  PATTERN CMakeFiles EXCLUDE PATTERN config EXCLUDE PATTERN reflection EXCLUDE)
install(FILES LICENSE DESTINATION share/doc/aft-client COMPONENT client)
include(CMakePackageConfigHelpers)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/AftClientConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/AftClientConfigVersion.cmake" "${CMAKE_SOURCE_DIR}/cmake/AftClientConfig.cmake"
  DESTINATION lib/cmake/AftClient COMPONENT client)
install(EXPORT AftClientTargets NAMESPACE AftClient:: DESTINATION lib/cmake/AftClient COMPONENT client)

# The libraries find each other in their own folder, because their RPATH ends in $ORIGIN.
if(AFT_TORCH)
  cmake_path(GET LibTorch_torch_cpu_LIBRARY PARENT_PATH _torch_lib)
  set(_libraries
    "${LibTorch_torch_cpu_LIBRARY}" "${LibTorch_c10_LIBRARY}" "${_torch_lib}/libgomp.so.1"
    "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcudart.so.13" "${LIBTORCH_ROOT}/../nvidia/cu13/lib/libcupti.so.13")
  set(_wheels torch nvidia_cuda_runtime nvidia_cuda_cupti)
  if(AFT_CUDA STREQUAL "ON")
    list(APPEND _libraries "${LibTorch_torch_cuda_LIBRARY}" "${LibTorch_c10_cuda_LIBRARY}"
      "${_torch_lib}/libtorch_nvshmem.so")  # libtorch_cuda.so needs it.
    # The other libraries that it needs, if ./dev setup --cuda has installed them; otherwise the loader must find those
    # of the host. Of cuDNN only the library that loads the others is installed, because no program here uses cuDNN.
    foreach(library cu13/lib/libcublas.so.13 cu13/lib/libcublasLt.so.13 cu13/lib/libcufft.so.12
        cu13/lib/libcufile.so.0 cu13/lib/libcurand.so.10 cu13/lib/libcusparse.so.12 cu13/lib/libnvJitLink.so.13
        cudnn/lib/libcudnn.so.9 cusparselt/lib/libcusparseLt.so.0 nccl/lib/libnccl.so.2
        nvshmem/lib/libnvshmem_host.so.3)
      if(EXISTS "${LIBTORCH_ROOT}/../nvidia/${library}")
        list(APPEND _libraries "${LIBTORCH_ROOT}/../nvidia/${library}")
      endif()
    endforeach()
    list(APPEND _wheels nvidia_cublas nvidia_cufft nvidia_cufile nvidia_curand nvidia_cusparse nvidia_nvjitlink
      nvidia_cudnn_cu13 nvidia_cusparselt_cu13 nvidia_nccl_cu13 nvidia_nvshmem_cu13)
  endif()
  install(FILES ${_libraries} DESTINATION lib COMPONENT server)
  # --strip applies only to our own targets, but a fifth of libtorch_cpu.so are symbols for debuggers.
  list(TRANSFORM _libraries REPLACE ".*/" "")
  install(CODE "
    if(CMAKE_INSTALL_DO_STRIP)
      foreach(library ${_libraries})
        execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/\${library}\"
          COMMAND_ERROR_IS_FATAL ANY)
      endforeach()
    endif()" COMPONENT server)
  list(TRANSFORM _wheels PREPEND "${LIBTORCH_ROOT}/../")
  list(TRANSFORM _wheels APPEND "-*.dist-info")
  file(GLOB _metadata ${_wheels})
  install(DIRECTORY ${_metadata} DESTINATION lib/wheels COMPONENT server PATTERN RECORD EXCLUDE)
endif()
