# Finds LibTorch's CPU half: the headers, libc10 and libtorch_cpu.
#
# PyTorch's own TorchConfig.cmake is not used: the one in a CUDA wheel stops the configure step on a
# machine without a CUDA toolkit, and links whole libraries that are never called.
#
# Searched: LibTorch_ROOT (a directory with include/ and lib/; variable or environment), the torch
# package of LibTorch_PYTHON, then CMAKE_PREFIX_PATH and the system.
#
#   LibTorch::cpu         imported target: at::Tensor and its CPU kernels
#   LibTorch_VERSION      e.g. 2.13.0
#   LibTorch_LIBRARY_DIR  where the libraries are
include(FindPackageHandleStandardArgs)

set(_LibTorch_candidates)
if(NOT LibTorch_ROOT AND NOT DEFINED ENV{LibTorch_ROOT})
  # Not kept in the cache: a Python with torch may come later.
  if(LibTorch_PYTHON)
    set(_LibTorch_python "${LibTorch_PYTHON}")
  else()
    find_program(_LibTorch_python
      NAMES python3
      HINTS "${CMAKE_SOURCE_DIR}/.venv/bin" "$ENV{VIRTUAL_ENV}/bin" "$ENV{CONDA_PREFIX}/bin"
      NO_CACHE)
  endif()
  if(_LibTorch_python)
    # Asks where the package is without importing it, which would take seconds.
    execute_process(
      COMMAND "${_LibTorch_python}" -c
        "from importlib.util import find_spec; s = find_spec('torch'); s and print(*s.submodule_search_locations, sep=';')"
      OUTPUT_VARIABLE _LibTorch_candidates
      OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET)
  endif()
  unset(_LibTorch_python)
endif()

find_path(LibTorch_INCLUDE_DIR ATen/core/TensorBody.h
  HINTS ${_LibTorch_candidates} PATH_SUFFIXES include)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_LibTorch_candidates} PATH_SUFFIXES lib)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_LibTorch_candidates} PATH_SUFFIXES lib)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_C10_LIBRARY LibTorch_CPU_LIBRARY)
unset(_LibTorch_candidates)

# The header moved in 2.9.
set(LibTorch_VERSION)
foreach(_LibTorch_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_INCLUDE_DIR}/${_LibTorch_header}")
    foreach(_LibTorch_part MAJOR MINOR PATCH)
      file(STRINGS "${LibTorch_INCLUDE_DIR}/${_LibTorch_header}" _LibTorch_line
        REGEX "^#define TORCH_VERSION_${_LibTorch_part} [0-9]+" LIMIT_COUNT 1)
      if(_LibTorch_line MATCHES "([0-9]+)$")
        list(APPEND LibTorch_VERSION "${CMAKE_MATCH_1}")
      endif()
    endforeach()
    list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
    # Another version may be installed in the same place.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      "${LibTorch_INCLUDE_DIR}/${_LibTorch_header}")
  endif()
endforeach()
unset(_LibTorch_header)
unset(_LibTorch_part)
unset(_LibTorch_line)

find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "install PyTorch (pip install torch), or set LibTorch_ROOT to a directory with include/ and lib/")

if(LibTorch_FOUND)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  if(NOT TARGET LibTorch::cpu)
    add_library(LibTorch::c10 SHARED IMPORTED)
    set_target_properties(LibTorch::c10 PROPERTIES
      IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR}")
    add_library(LibTorch::cpu SHARED IMPORTED)
    set_target_properties(LibTorch::cpu PROPERTIES
      IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES
        "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
      INTERFACE_LINK_LIBRARIES LibTorch::c10)
  endif()
endif()
