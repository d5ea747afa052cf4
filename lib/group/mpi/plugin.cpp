// libdsckpt_mpi.so: MPI, behind the functions of mpi_plugin.h.
#include <mpi.h>

#include <array>
#include <cstring>

#include "group/mpi_plugin.h"

namespace {

// MPI ends the process on errors, unless it is told to return them.
const char* error_text(int code) {
  if (code == MPI_SUCCESS) return nullptr;
  static std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return text.data();
}

const char* start(int* rank, int* size) {
  int provided = 0;
  if (const char* error =
          error_text(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided))) {
    return error;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (const char* error = error_text(MPI_Comm_rank(MPI_COMM_WORLD, rank))) return error;
  return error_text(MPI_Comm_size(MPI_COMM_WORLD, size));
}

const char* library() {
  static std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text[std::strcspn(text.data(), "\n,")] = '\0';
  return text.data();
}

const char* from_first(char* bytes, int size) {
  return error_text(MPI_Bcast(bytes, size, MPI_BYTE, 0, MPI_COMM_WORLD));
}

const char* finish() {
  return error_text(MPI_Finalize());
}

constexpr dsckpt::MpiFunctions kFunctions{dsckpt::MpiFunctions::kVersion, start, library,
                                          from_first, finish};

}  // namespace

extern "C" __attribute__((visibility("default"))) const dsckpt::MpiFunctions*
dsckpt_mpi_functions() {
  return &kFunctions;
}
