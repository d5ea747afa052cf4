#include "group/mpi_plugin.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "dsckpt/error.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFile = "libdsckpt_mpi.so";

fs::path find_plugin(const Environment& environment) {
  if (const char* named = environment("DSCKPT_MPI")) return named;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  const fs::path above = program.parent_path().parent_path();
  for (const char* folder : std::array{"lib/dsckpt", "lib", "lib64/dsckpt"}) {
    const fs::path file = above / folder / kFile;
    if (fs::exists(file, failed)) return file;
  }
  return {};
}

}  // namespace

const MpiFunctions* load_mpi(const Environment& environment) {
  const fs::path file = find_plugin(environment);
  if (file.empty()) return nullptr;
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw UsageError(std::string("the MPI plug-in cannot be loaded: ") + ::dlerror())
        .with_hint("it is built with the site's own MPI (-DDSCKPT_MPI=ON); --group tcp needs none");
  }
  const auto get = reinterpret_cast<GetMpiFunctions>(::dlsym(library, kGetMpiFunctions));
  const MpiFunctions* functions = get == nullptr ? nullptr : get();
  if (functions == nullptr || functions->version != MpiFunctions::kVersion) {
    throw UsageError(file.string() + ": is no MPI plug-in of this release");
  }
  return functions;
}

std::string how_to_get_mpi() {
  return std::string(kFile) +
         " is built with the site's own MPI (-DDSCKPT_MPI=ON) and lies in lib/ beside the tool's "
         "bin/, or where DSCKPT_MPI says; --group tcp needs none";
}

}  // namespace dsckpt
