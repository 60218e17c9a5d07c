# Links gRPC, protobuf, Abseil and what they need from Debian's static archives, hidden inside the
# programs, so that these run where no such library is installed (`./dev bundle`). All of them or
# none: a shared library of the family beside a static one would bring its globals twice.
# What Debian ships as shared libraries only (prometheus-cpp, Highway) stays shared.
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
# What stays shared lies beside the programs; LibTorch is found through LD_LIBRARY_PATH. RPATH, not
# RUNPATH: those libraries find each other through it too.
add_link_options(LINKER:--disable-new-dtags)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
