// In the place of mpi_plugin.cpp where a program cannot load libraries: it is static.
#include "dsckpt/error.h"
#include "group/mpi_plugin.h"

namespace dsckpt {

const MpiFunctions* load_mpi(const Environment&) {
  return nullptr;
}

std::string how_to_get_mpi() {
  return "this program is static and loads no MPI; the build with shared libraries and "
         "-DDSCKPT_MPI=ON does; --group tcp needs none";
}

}  // namespace dsckpt
