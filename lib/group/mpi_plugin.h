// The MPI plug-in: what libdsckpt_mpi.so gives to a tool that was started under MPI.
//
// The tools do not link MPI: there is no MPI for all sites, and most runs need none. A site builds
// the plug-in with its own (-DDSCKPT_MPI=ON); it is loaded where a launcher has started several
// ranks. MPI names them, hands on where rank 0 is to be found, and is told of the end.
#pragma once

#include <memory>
#include <string>

#include "group/launch.h"

namespace dsckpt {

// In C, since the plug-in may come from another compiler. Each function returns nullptr, or why it
// failed: a text that stays.
struct MpiFunctions {
  static constexpr int kVersion = 1;
  int version;
  const char* (*start)(int* rank, int* size);  // MPI_Init_thread, in the thread that calls the rest
  const char* (*library)();                    // MPI_Get_library_version, its first line
  const char* (*from_first)(char* bytes, int size);  // MPI_Bcast from rank 0
  const char* (*finish)();                           // MPI_Finalize
};
// The function that the plug-in exports.
using GetMpiFunctions = const MpiFunctions* (*)();
inline constexpr const char* kGetMpiFunctions = "dsckpt_mpi_functions";

// Loaded from the path in DSCKPT_MPI, or else from where it was built or installed beside the
// tool; nullptr if there is none there. Stays loaded. Throws UsageError for a file that cannot be
// loaded or is of another release, and where DSCKPT_MPI names none.
const MpiFunctions* load_mpi(const Environment& environment);

// The advice for a build without plug-ins, and for a missing plug-in.
std::string how_to_get_mpi();

}  // namespace dsckpt
