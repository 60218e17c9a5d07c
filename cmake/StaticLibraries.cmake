# Links gRPC, protobuf, Abseil and their dependencies from Debian's static archives, with hidden symbols,
# so that the programs run without these libraries (`./dev bundle`). All of them must be static: a shared
# library of the family next to a static one would have a second copy of its globals. Libraries that
# Debian has only as shared ones (prometheus-cpp, Highway) stay shared.
get_property(_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(_target IN LISTS _targets)
  if(NOT _target MATCHES "^(absl|gRPC|protobuf|re2|c-ares|OpenSSL|ZLIB|GTest)::")
    continue()
  endif()
  foreach(_property IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE)
    get_target_property(_location ${_target} ${_property})
    if(NOT _location MATCHES "\\.so")
      continue()
    endif()
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" _archive "${_location}")
    if(EXISTS "${_archive}")
      set_target_properties(${_target} PROPERTIES ${_property} "${_archive}")
      string(REPLACE LOCATION SONAME _soname "${_property}")
      set_property(TARGET ${_target} PROPERTY ${_soname})
    else()
      message(FATAL_ERROR "AFT_STATIC: ${_target} has no static archive ${_archive}")
    endif()
  endforeach()
endforeach()
find_library(AFT_STATIC_RE2 libre2.a REQUIRED)  # found by name, through pkg-config
mark_as_advanced(AFT_STATIC_RE2)
set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES "${AFT_STATIC_RE2}")
add_link_options(LINKER:--exclude-libs,ALL)
# The shared libraries are in ../lib next to the programs; LibTorch is found through LD_LIBRARY_PATH. We use
# RPATH and not RUNPATH, because these libraries find each other through it too.
add_link_options(LINKER:--disable-new-dtags)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
