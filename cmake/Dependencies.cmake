# Finds every third-party library, and downloads none. All except LibTorch are packages of Debian 12.
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Boost 1.74 CONFIG REQUIRED)  # headers: Asio and Beast
find_package(Protobuf 3.21 MODULE REQUIRED)  # Debian has no CMake config for protobuf.
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
if(NOT TARGET re2::re2)  # gRPC has already found it, through the module that Debian has with gRPC.
  find_package(re2 REQUIRED)
endif()

# gRPC, protobuf and Abseil are linked through this one target, all shared or all static: two copies of
# Abseil in one process would have two sets of its globals.
add_library(aft_grpc INTERFACE)
target_link_libraries(aft_grpc INTERFACE gRPC::grpc++ protobuf::libprotobuf)
add_library(aft::grpc ALIAS aft_grpc)
set(AFT_GRPC_HEADERS <grpcpp/grpcpp.h> <google/protobuf/message.h> <absl/functional/function_ref.h>
  <absl/status/statusor.h> <absl/strings/str_cat.h> <functional> <string> <vector>)
aft_precompiled(grpc HEADERS ${AFT_GRPC_HEADERS} DEPS aft_grpc absl::status absl::statusor absl::strings)

# libedit, hiredis and utf8proc have no CMake config.
add_library(aft_edit INTERFACE)
add_library(aft_hiredis INTERFACE)
add_library(aft_utf8proc INTERFACE)
if(AFT_STATIC)
  target_link_libraries(aft_edit INTERFACE -l:libedit.a -l:libtinfo.a -l:libbsd.a -l:libmd.a)
  target_link_libraries(aft_hiredis INTERFACE -l:libhiredis.a)
  target_link_libraries(aft_utf8proc INTERFACE -l:libutf8proc.a)
else()
  target_link_libraries(aft_edit INTERFACE edit)
  target_link_libraries(aft_hiredis INTERFACE hiredis)
  target_link_libraries(aft_utf8proc INTERFACE utf8proc)
endif()

if(AFT_TORCH)
  find_package(LibTorch 2.11 MODULE REQUIRED)
endif()
if(AFT_TESTS)
  find_package(GTest 1.12 CONFIG REQUIRED)
endif()
if(AFT_BENCH)
  find_package(benchmark 1.7 CONFIG REQUIRED)
endif()

if(AFT_STATIC)
  include(StaticLibraries)
endif()
