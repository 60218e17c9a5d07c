# Decides whether CUDA kernels are compiled, and prints the decision in one line, which CI shows.
#
#   OFF   CUDA is not used
#   AUTO  with nvcc: the kernels and the queue are compiled, as a check, for one architecture; the
#         programs stay CPU programs
#   ON    the programs run on GPUs too, and need LibTorch's CUDA libraries to start
set(AFT_CUDA_ENABLED OFF)
if(NOT AFT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER)  # nvcc may have been installed since.
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(AFT_CUDA_ENABLED ON)
  elseif(AFT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AFT_CUDA=ON, but no nvcc was found; ./dev setup --cuda brings it")
  endif()
endif()
if(AFT_CUDA_ENABLED)
  if(NOT CMAKE_CUDA_ARCHITECTURES)  # `native` fails on a machine without a GPU.
    if(AFT_CUDA STREQUAL "ON")
      set(CMAKE_CUDA_ARCHITECTURES 80 90)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 does not know CUDA20.
  set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3")
  enable_language(CUDA)
  if(NOT TARGET CUDA::nvToolsExt)  # CMake 3.25.1 expects this target, which CUDA 13 does not have.
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit REQUIRED)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", sm_" architectures)
  message(STATUS "CUDA: compiled (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, sm_${architectures})")
elseif(AFT_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off")
else()
  message(STATUS "CUDA: no nvcc, skipped")
endif()
