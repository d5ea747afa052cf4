// Any pickle is universal_checkpoint_info, or what holds it, or it is refused; so are the affine
// maps in it. Slices of any parameter go together by it, or are refused.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/affine_map.h"
#include "checkpoint/universal_info.h"
#include "deepspeed/keys.h"
#include "dsckpt/error.h"
#include "format/torch_archive.h"
#include "fuzz/archive_of.h"
#include "fuzz/memory_file.h"
#include "fuzz/refuse_as.h"
#include "io/input_file.h"

namespace dsckpt {
namespace {

constexpr auto refuse_or = [](auto&& read) {
  refuse_as<ErrorKind::corrupt, ErrorKind::unsupported, ErrorKind::inconsistent>(read);
};

void read_info(const Fields& info) {
  UniversalInfo rules = UniversalInfo::read(info);
  for (const char* name : {"weight", "transformer.layers.0.attention.query_key_value.weight"}) {
    refuse_or([&] {
      const auto rule = rules.rule_for(name, {{4, 4}, {4, 4}});
      static_cast<void>(rule);
    });
  }
  static_cast<void>(rules.unused_patterns());
}

}  // namespace
}  // namespace dsckpt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string archive = archive_of(std::string(reinterpret_cast<const char*>(data), size));
  const MemoryFile memory(reinterpret_cast<const uint8_t*>(archive.data()), archive.size());
  refuse_or([&] {
    InputFiles files;
    const Shard shard{
        {}, memory.path(), "fuzz", TorchArchive::open(files, files.add(memory.path()))};
    const pickle::Value root = shard.archive.root();
    refuse_or([&] { AffineAssembly{AffineMap::read(root, {})}; });
    refuse_or([&] { AffineMap::from_expert_placement(root, {4, 3}, {}); });
    const Fields fields(shard, root);
    refuse_or([&] { read_info(fields); });
    if (fields.has(keys::kUniversalCheckpointInfo)) {
      read_info(fields.in(keys::kUniversalCheckpointInfo));
    }
  });
  return 0;
}
