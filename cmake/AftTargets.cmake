# Compiler settings and the two helpers with which every folder declares its target.

add_library(aft_warnings INTERFACE)
target_compile_options(aft_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast
  $<$<BOOL:${AFT_WERROR}>:-Werror>)

# On ARM GCC would fuse multiplications with additions, and give other bits than on x86-64, whose baseline has no
# such instruction.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  add_compile_options(-ffp-contract=off)
endif()

if(AFT_SANITIZE)
  add_compile_options(-fsanitize=${AFT_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${AFT_SANITIZE})
  # The checks add paths on which GCC believes that members of a variant are not set.
  target_compile_options(aft_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
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

# GCC 12 sees wrong bounds in std::string at -O1, and in precompiled headers, so these warnings are off there.
set(AFT_WRONG_BOUNDS -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict)

# aft_precompiled(NAME HEADERS ... DEPS ...): precompiles headers of other projects that many files share.
# Libraries and tests of a folder that sets AFT_PRECOMPILED to NAME begin with them. Headers of ours must
# not be among them, because a change of one would rebuild all. Files still include what they use: the
# preset asan compiles them without precompiled headers.
function(aft_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS;OPTIONS" ${ARGN})
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/precompiled/${name}.cc" CONTENT "")
  add_library(aft_precompiled_${name} OBJECT "${CMAKE_BINARY_DIR}/precompiled/${name}.cc")
  target_link_libraries(aft_precompiled_${name} PRIVATE ${ARG_DEPS} aft_warnings)
  target_compile_options(aft_precompiled_${name} PRIVATE ${ARG_OPTIONS} -fpch-preprocess -pthread)
  target_precompile_headers(aft_precompiled_${name} PRIVATE ${ARG_HEADERS})
endfunction()
function(aft_use_precompiled target)
  if(AFT_PRECOMPILED)
    # The first is for ccache. The second is here because gRPC and re2 ask for it, and a precompiled header fits
    # only if all files have it.
    target_compile_options(${target} PRIVATE -fpch-preprocess -pthread ${AFT_WRONG_BOUNDS})
    target_precompile_headers(${target} REUSE_FROM aft_precompiled_${AFT_PRECOMPILED})
  endif()
endfunction()

# aft_unity(NAME): with AFT_UNITY the sources of a target are compiled in batches. A batch is one file that
# includes its sources, so headers are read once per batch. Therefore names in unnamed namespaces must
# differ within a target.
function(aft_unity target)
  if(AFT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${AFT_UNITY_BATCH})
    # GCC takes the sources of a batch for headers, and warns of their types in unnamed namespaces.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# aft_library(NAME SOURCES ... DEPS ...): adds the static library `aft_NAME` with the alias `aft::NAME`. A
# library without sources is header-only. Include paths begin at the repository's root.
function(aft_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(aft_${name} STATIC ${ARG_SOURCES})
    target_include_directories(aft_${name} PUBLIC "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>")
    target_link_libraries(aft_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} "$<BUILD_INTERFACE:aft_warnings>")
    aft_use_precompiled(aft_${name})
    aft_unity(aft_${name})
  else()
    add_library(aft_${name} INTERFACE)
    target_include_directories(aft_${name} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(aft_${name} INTERFACE ${ARG_DEPS})
  endif()
  add_library(aft::${name} ALIAS aft_${name})
endfunction()

# aft_html(LIBRARY PAGE CONSTANT): embeds PAGE.html of this folder in aft_LIBRARY. Its sources include
# "FOLDER/PAGE_html.h", which defines the page as the string CONSTANT.
function(aft_html library file constant)
  file(RELATIVE_PATH page "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
  file(READ "${file}.html" AFT_HTML)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}.html")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/html.h.in" "${CMAKE_BINARY_DIR}/generated/${page}_html.h" @ONLY)
  target_include_directories(aft_${library} PRIVATE "${CMAKE_BINARY_DIR}/generated")
endfunction()

# aft_program(NAME SOURCES ... DEPS ...): adds the executable NAME in build/<preset>/bin.
function(aft_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} aft_warnings)
  aft_use_precompiled(${name})
  aft_unity(${name})
endfunction()

set(AFT_O1_OPTIONS -O1 ${AFT_WRONG_BOUNDS})

# aft_compile_quickly(TARGET): compiles at -O1, which takes a fifth less time. For code that runs once per start or
# command. Do not use it in the server's libraries: the linker may take a template's code for all of them from there.
function(aft_compile_quickly target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:${AFT_O1_OPTIONS}>")
endfunction()

set(AFT_TEST_OPTIONS ${AFT_O1_OPTIONS})

# aft_test(NAME SOURCES ... DEPS ... [LABELS ...] [SHARDS N]): adds a GoogleTest program. -O1 compiles a
# third faster, and the code that must be fast is in the libraries. The program is one CTest entry, or N
# entries with a part of its tests each, so that a long program keeps more than one core busy. Labels:
#   tsan         needs neither torch nor gRPC: the target tsan_tests builds it, and it runs under ThreadSanitizer
#   cuda_on_cpu  runs CUDA kernels on the CPU; the target cuda_on_cpu_tests builds it
#   random       draws its inputs from AFT_TEST_SEED; every test that has aft::random_inputs among its DEPS has this
#                label, and the lint finds tests that draw and do not name that library
add_custom_target(tsan_tests)
add_custom_target(cuda_on_cpu_tests)
function(aft_test name)
  cmake_parse_arguments(ARG "" "SHARDS" "SOURCES;DEPS;LABELS" ${ARGN})
  aft_program(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gmock_main)
  target_compile_options(${name} PRIVATE ${AFT_TEST_OPTIONS})
  if(aft::random_inputs IN_LIST ARG_DEPS)
    list(APPEND ARG_LABELS random)
  endif()
  if(ARG_SHARDS)
    math(EXPR last "${ARG_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}_${shard} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
      set_tests_properties(${name}_${shard} PROPERTIES LABELS "${ARG_LABELS}" COST 100
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  foreach(label tsan cuda_on_cpu)
    if(label IN_LIST ARG_LABELS)
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
endfunction()

# aft_test_objects(NAME SOURCES ... DEPS ...): compiles tests once that several programs contain. These
# programs have `aft_NAME` among their DEPS.
function(aft_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(aft_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(aft_${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(aft_${name} PRIVATE ${ARG_DEPS} GTest::gmock aft_warnings)
  target_compile_options(aft_${name} PRIVATE ${AFT_TEST_OPTIONS})
  aft_use_precompiled(aft_${name})
endfunction()
