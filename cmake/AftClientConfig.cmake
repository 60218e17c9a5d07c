# find_package(AftClient) defines the target AftClient::client. It needs the gRPC, protobuf and Abseil that the library was
# built with: Debian 12's.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(Protobuf 3.21 MODULE)
find_dependency(gRPC 1.51 CONFIG)
find_dependency(absl CONFIG)
include("${CMAKE_CURRENT_LIST_DIR}/AftClientTargets.cmake")
