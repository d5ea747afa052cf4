// Any pickle is universal_checkpoint_info, or what holds it, or it is refused; so are the affine
// maps and placements in it. Slices of any parameter go together by it, or are refused.
//
// Its owner may name the parameter ("name") and the shapes of its slices ("slices").
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

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

// Elements of a tensor that is made, or walked piece by piece.
constexpr int64_t kMostElements = 1 << 16;

// One behind the other in a file that nobody reads.
std::vector<TensorSource> tensors_of(const std::vector<Shape>& shapes) {
  std::vector<TensorSource> tensors;
  uint64_t offset = 0;
  for (const Shape& shape : shapes) {
    const int64_t count = numel(shape);
    if (count > kMostElements) throw UnsupportedError({}, "is too large to be made");
    const uint64_t bytes = static_cast<uint64_t>(count) * size_of(DType::float32);
    tensors.push_back(TensorSource::stored({0, offset, bytes}, DType::float32, shape));
    offset += bytes;
  }
  return tensors;
}

void walk(const TensorSource& merged) {
  if (merged.numel() <= kMostElements) merged.lower([](const SourceRun&) {});
}

void assemble(const AffineMap& map) {
  const AffineAssembly assembly(map);
  walk(assembly.merge(tensors_of(assembly.shard_shapes()), "a state on"));
}

struct Slices {
  std::string name;
  std::vector<Shape> shapes;
};

std::vector<Slices> slices_of(const Fields& root) {
  constexpr size_t kMostSlices = 16;
  std::vector<Slices> all = {
      {"weight", {{4, 4}, {4, 4}}},
      {"transformer.layers.0.attention.query_key_value.weight", {{4, 4}, {4, 4}}}};
  refuse_or([&] {
    Slices named{root.text("name"), {}};
    for (const pickle::Value& shape : root.sequence("slices")) {
      named.shapes.push_back(shape_from_pickle(shape));
      if (named.shapes.size() == kMostSlices) break;
    }
    if (!named.shapes.empty()) all.push_back(std::move(named));
  });
  return all;
}

void read_info(const Fields& info, const std::vector<Slices>& all) {
  UniversalInfo rules = UniversalInfo::read(info);
  for (const Slices& slices : all) {
    refuse_or([&] {
      const auto rule = rules.rule_for(slices.name, slices.shapes);
      walk(rule.merge(tensors_of(slices.shapes), "fp32"));
    });
    static_cast<void>(rules.is_pipeline_replicated(slices.name));
  }
  static_cast<void>(rules.unused_patterns());
}

void read_placement(const pickle::Value& root) {
  const pickle::Value count = root.find_or_none("num_experts");
  const int64_t experts = count.is(pickle::Kind::integer) ? count.as_int() : 4;
  if (experts < 1 || experts > kMostElements) return;
  assemble(AffineMap::from_expert_placement(root, {experts, 3}, {}));
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
    refuse_or([&] { assemble(AffineMap::read(root, {})); });
    refuse_or([&] { read_placement(root); });
    const Fields fields(shard, root);
    const std::vector<Slices> slices = slices_of(fields);
    refuse_or([&] { read_info(fields, slices); });
    if (fields.has(keys::kUniversalCheckpointInfo)) {
      read_info(fields.in(keys::kUniversalCheckpointInfo), slices);
    }
  });
  return 0;
}
