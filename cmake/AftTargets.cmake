# Compiler settings and the two helpers with which every folder declares its target.

add_library(aft_warnings INTERFACE)
target_compile_options(aft_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast
  $<$<BOOL:${AFT_WERROR}>:-Werror>)

if(AFT_SANITIZE)
  add_compile_options(-fsanitize=${AFT_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${AFT_SANITIZE})
endif()

find_program(AFT_CCACHE ccache)
if(AFT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${AFT_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${AFT_CCACHE}")
endif()
find_program(AFT_MOLD mold)
if(AFT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# aft_library(NAME SOURCES ... DEPS ...): static library `aft_NAME`, alias `aft::NAME`. A library
# without sources is header-only. Includes are written from the repository's root.
function(aft_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(aft_${name} STATIC ${ARG_SOURCES})
    target_include_directories(aft_${name} PUBLIC "${CMAKE_SOURCE_DIR}")
    target_link_libraries(aft_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} aft_warnings)
  else()
    add_library(aft_${name} INTERFACE)
    target_include_directories(aft_${name} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(aft_${name} INTERFACE ${ARG_DEPS})
  endif()
  add_library(aft::${name} ALIAS aft_${name})
endfunction()

# aft_program(NAME SOURCES ... DEPS ...): executable NAME in build/<preset>/bin.
function(aft_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} aft_warnings)
endfunction()

# aft_test(NAME SOURCES ... DEPS ... [LABELS ...]): one GoogleTest program, one CTest entry. Label
# `tsan`: torch-free and gRPC-free, built by the target tsan_tests and run under ThreadSanitizer.
# `cuda_on_cpu`: runs CUDA kernels on the CPU; the target cuda_on_cpu_tests.
add_custom_target(tsan_tests)
add_custom_target(cuda_on_cpu_tests)
function(aft_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  aft_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock_main)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 LABELS "${ARG_LABELS}")
  foreach(label tsan cuda_on_cpu)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
endfunction()
