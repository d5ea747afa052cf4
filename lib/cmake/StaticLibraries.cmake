# For DSCKPT_STATIC: archives only. What the distribution has as an archive is taken from it; oneTBB, mimalloc
# and curl, which Debian has not, and a newer mbedTLS, are built from its source packages, pinned by their checksums.
#
#   TBB::tbb        imported or built target
#   mimalloc        built target, if DSCKPT_WITH_MIMALLOC and DSCKPT_TOOLS
#   CURL::libcurl, pugixml::pugixml
#                   the same, if DSCKPT_S3; DSCKPT_WITH_S3 says whether they are there
#   PkgConfig::re2  built target, if DSCKPT_PYTHON_MODULE: Debian's archive is for programs only
include(FetchContent)

set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
# A day when both were there, for when the first no longer has them.
set(_debian "http://deb.debian.org/debian" "https://snapshot.debian.org/archive/debian/20261120T000000Z")

# _add_source_package(NAME SHA256 PATH [PATCH_COMMAND COMMAND...]): the CMake project in a package of Debian's pool,
# of which nothing is installed.
function(_add_source_package name sha256 path)
  list(TRANSFORM _debian APPEND "/pool/main/${path}" OUTPUT_VARIABLE urls)
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.24)
    set(timestamps DOWNLOAD_EXTRACT_TIMESTAMP ON)
  endif()
  # There is no such folder in it: unpacked here, added below.
  FetchContent_Declare(${name} URL ${urls} URL_HASH SHA256=${sha256} SOURCE_SUBDIR nothing ${timestamps}
    ${ARGN})
  FetchContent_MakeAvailable(${name})
  FetchContent_GetProperties(${name} SOURCE_DIR source BINARY_DIR binary)
  set(BUILD_SHARED_LIBS OFF)
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)     # what is set below is heard by option()
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)     # CMake 4 takes projects that are older than itself
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
  set(TBB_TEST OFF)
  set(TBB_STRICT OFF)
  set(TBBMALLOC_BUILD OFF)
  set(TBB_DISABLE_HWLOC_AUTOMATIC_SEARCH ON)
  set(RE2_BUILD_TESTING OFF)
  set(MI_BUILD_SHARED OFF)
  set(MI_BUILD_OBJECT OFF)
  set(MI_BUILD_TESTS OFF)
  set(MI_USE_CXX ON)                        # its operator new can throw then (apps/new.cpp)
  set(ENABLE_PROGRAMS OFF)
  set(ENABLE_TESTING OFF)
  set(MBEDTLS_FATAL_WARNINGS OFF)
  # HTTP alone, and nothing of this machine: where certificates are is looked for when it runs.
  set(BUILD_CURL_EXE OFF)
  set(BUILD_LIBCURL_DOCS OFF)
  set(BUILD_MISC_DOCS OFF)
  set(BUILD_TESTING OFF)
  set(BUILD_STATIC_LIBS ON)
  set(ENABLE_CURL_MANUAL OFF)
  set(CURL_DISABLE_INSTALL ON)
  set(HTTP_ONLY ON)
  set(ENABLE_ARES ON)
  set(CURL_USE_OPENSSL OFF)
  set(CURL_USE_MBEDTLS ON)
  foreach(unused IN ITEMS CURL_USE_LIBPSL CURL_USE_LIBSSH2 USE_LIBIDN2 USE_NGHTTP2)
    set(${unused} OFF)
  endforeach()
  # Of these its own set(... CACHE) hears.
  foreach(unused IN ITEMS CURL_BROTLI CURL_ZLIB CURL_ZSTD)
    set(${unused} OFF CACHE INTERNAL "")
  endforeach()
  foreach(unused IN ITEMS CURL_CA_BUNDLE CURL_CA_PATH)
    set(${unused} none CACHE INTERNAL "")
  endforeach()
  add_subdirectory("${source}" "${binary}" EXCLUDE_FROM_ALL)
endfunction()

# _use_headers_quietly(TARGET): no warnings of what its headers have.
function(_use_headers_quietly target)
  get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
  set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${folders}")
endfunction()

find_library(DSCKPT_TBB_ARCHIVE tbb)
find_path(DSCKPT_TBB_INCLUDE tbb/version.h)
mark_as_advanced(DSCKPT_TBB_ARCHIVE DSCKPT_TBB_INCLUDE)
if(DSCKPT_TBB_ARCHIVE AND DSCKPT_TBB_INCLUDE)
  add_library(TBB::tbb STATIC IMPORTED GLOBAL)
  set_target_properties(TBB::tbb PROPERTIES
    IMPORTED_LOCATION "${DSCKPT_TBB_ARCHIVE}"
    INTERFACE_INCLUDE_DIRECTORIES "${DSCKPT_TBB_INCLUDE}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
else()
  _add_source_package(onetbb
    7e9111b8bb59c8800bf6d0b06afe7b0891937443d2dae1ee1101c8e2ede6a7ef
    o/onetbb/onetbb_2021.8.0.orig.tar.xz)
  # A program without shared libraries loads none either, nor those of VTune.
  get_target_property(definitions tbb COMPILE_DEFINITIONS)
  list(FILTER definitions EXCLUDE REGEX "__TBB_USE_ITT_NOTIFY")
  set_target_properties(tbb PROPERTIES COMPILE_DEFINITIONS "${definitions};__TBB_DYNAMIC_LOAD_ENABLED=0")
  _use_headers_quietly(tbb)
endif()

if(DSCKPT_TOOLS AND DSCKPT_WITH_MIMALLOC AND NOT DSCKPT_SANITIZE)
  _add_source_package(mimalloc_source
    cbc9d207ff105ad1f0cb739c378076143a6452b8d0624309cea0abfb040e972b
    m/mimalloc/mimalloc_2.0.9%2bds.orig.tar.xz)
  add_library(mimalloc ALIAS mimalloc-static)
endif()

# Names are looked up by c-ares: glibc's own lookup loads shared libraries. Debian 12's mbedTLS is 2.28, which knows
# neither TLS 1.3 nor certificates of addresses, nor ARM's instructions for AES.
find_library(DSCKPT_CARES_ARCHIVE cares)
find_library(DSCKPT_PUGIXML_ARCHIVE pugixml)
find_path(DSCKPT_PUGIXML_INCLUDE pugixml.hpp)
mark_as_advanced(DSCKPT_CARES_ARCHIVE DSCKPT_PUGIXML_ARCHIVE DSCKPT_PUGIXML_INCLUDE)
set(lacks)
if(NOT DSCKPT_TOOLS AND NOT DSCKPT_PYTHON_MODULE)
  set(lacks "only the tools and the Python module do that (DSCKPT_TOOLS, DSCKPT_PYTHON_MODULE)")
else()
  foreach(part IN ITEMS "CARES libcares.a libc-ares-dev" "PUGIXML libpugixml.a libpugixml-dev")
    separate_arguments(part)
    list(GET part 0 name)
    list(GET part 1 archive)
    list(GET part 2 package)
    if(NOT DSCKPT_${name}_ARCHIVE)
      list(APPEND lacks "${archive} is missing (on Debian: ${package})")
    endif()
  endforeach()
endif()
dsckpt_decide(DSCKPT_S3 DSCKPT_WITH_S3 ${lacks})
if(DSCKPT_WITH_S3)
  _add_source_package(mbedtls_source
    4a11f1777bb95bf4ad96721cac945a26e04bf19f57d905f241fe77ebeddf46d8
    m/mbedtls/mbedtls_3.6.5.orig.tar.bz2)
  # Requests are made by many threads.
  target_compile_definitions(mbedcrypto PUBLIC MBEDTLS_THREADING_C MBEDTLS_THREADING_PTHREAD)
  target_link_libraries(mbedcrypto PUBLIC Threads::Threads)
  # What curl's FindMbedTLS.cmake would look for; imported, since curl exports what it is linked with.
  add_library(MbedTLS::built INTERFACE IMPORTED GLOBAL)
  target_link_libraries(MbedTLS::built INTERFACE mbedtls mbedx509 mbedcrypto)
  set(MBEDTLS_INCLUDE_DIR "${mbedtls_source_SOURCE_DIR}/include" CACHE INTERNAL "")
  foreach(part IN ITEMS MBEDTLS MBEDX509 MBEDCRYPTO)
    set(${part}_LIBRARY MbedTLS::built CACHE INTERNAL "")
  endforeach()
  _add_source_package(curl_source
    6766ada7101d292b42b8b15681120acd68effa4a9660935853cf6d61f0d984d4
    c/curl/curl_8.14.1.orig.tar.gz)
  add_library(pugixml::pugixml STATIC IMPORTED GLOBAL)
  set_target_properties(pugixml::pugixml PROPERTIES
    IMPORTED_LOCATION "${DSCKPT_PUGIXML_ARCHIVE}"
    INTERFACE_INCLUDE_DIRECTORIES "${DSCKPT_PUGIXML_INCLUDE}")
endif()

if(DSCKPT_PYTHON_MODULE)
  # Debian leaves out what scripts make of Perl's classes and of Unicode's tables, which it has apart.
  set(unicode /usr/share/unicode)
  if(NOT EXISTS "${unicode}/UnicodeData.txt")
    message(FATAL_ERROR "${unicode}/UnicodeData.txt is missing: install unicode-data")
  endif()
  _add_source_package(re2_source
    3bc61251da3b0b97be40a8a127818c517c62516e4eda11fc901d29496663df54
    r/re2/re2_20220601%2bdfsg.orig.tar.xz
    PATCH_COMMAND sed -i -e "/^from six/d" -e "s:^_UNICODE_DIR = .*:_UNICODE_DIR = '${unicode}':" re2/unicode.py
    COMMAND perl re2/make_perl_groups.pl > re2/perl_groups.cc
    COMMAND python3 re2/make_unicode_casefold.py > re2/unicode_casefold.cc
    COMMAND python3 re2/make_unicode_groups.py > re2/unicode_groups.cc)
  _use_headers_quietly(re2)
  add_library(PkgConfig::re2 ALIAS re2)
endif()

# What is linked in goes with its licence: Debian's files of its own packages.
if(DSCKPT_INSTALL)
  foreach(package IN ITEMS libc-ares-dev libc6-dev libcli11-dev libdeflate-dev libncurses-dev
      libpugixml-dev libre2-dev libutf8proc-dev libxxhash-dev libzstd-dev nettle-dev nlohmann-json3-dev zlib1g-dev)
    if(EXISTS "/usr/share/doc/${package}/copyright")
      install(FILES "/usr/share/doc/${package}/copyright"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}/licences" RENAME ${package} COMPONENT tools)
    endif()
  endforeach()
  foreach(source IN ITEMS onetbb mimalloc_source mbedtls_source curl_source re2_source)
    file(GLOB licence "${${source}_SOURCE_DIR}/LICENSE*" "${${source}_SOURCE_DIR}/COPYING")
    if(licence)
      install(FILES ${licence} DESTINATION "${CMAKE_INSTALL_DOCDIR}/licences" RENAME ${source} COMPONENT tools)
    endif()
  endforeach()
endif()
