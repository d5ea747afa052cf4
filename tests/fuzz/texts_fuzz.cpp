// Texts of users and other programs, each by all of its readers. They are a ds_config, a model's
// configuration, an index of weights, a manifest, rules for names, and a rule for tensor-parallel
// slices. Others are the names of shards and swap files, sizes, and the files of an interrupted
// run.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "base/json.h"
#include "base/kernels.h"
#include "base/text.h"
#include "checkpoint/names/key_map.h"
#include "checkpoint/tp_rule.h"
#include "checkpoint/universal_info.h"
#include "checkpoint/weights.h"
#include "deepspeed/ds_config.h"
#include "deepspeed/shard_name.h"
#include "deepspeed/swap_name.h"
#include "dsckpt/dtype.h"
#include "dsckpt/error.h"
#include "exec/journal.h"
#include "exec/staging_owner.h"
#include "fuzz/memory_file.h"
#include "fuzz/refuse_as.h"
#include "inspect/verify/manifest.h"
#include "support/own_folder.h"
#include "support/temp_file.h"
#include "weights/model_config.h"

namespace dsckpt {
namespace {

// Nothing else is thrown but what says that the input is wrong.
constexpr auto refuse_or = [](auto&& read) {
  refuse_as<ErrorKind::usage, ErrorKind::corrupt, ErrorKind::inconsistent, ErrorKind::unsupported,
            ErrorKind::io>(read);
};

void read_staging(const std::string& text) {
  static const test::TempFolder folder(test::memory_path());
  for (const char* name : {"job", "journal", "owner"}) folder.write(name, text);
  refuse_or([] { static_cast<void>(difference_from_saved(test::own(folder.path()), {})); });
  refuse_or([] { static_cast<void>(load_written(test::own(folder.path()))); });
  refuse_or([] { static_cast<void>(load_reached(test::own(folder.path()))); });
  static_cast<void>(owner_of(test::own(folder.path())));
  std::string checked;  // as a journal is
  append_le(checked, crc32(0, as_byte_span(text)));
  folder.write("journal", checked + text);
  refuse_or([] { static_cast<void>(load_reached(test::own(folder.path()))); });
}

}  // namespace
}  // namespace dsckpt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const MemoryFile memory(data, size);
  refuse_or([&] {
    const nlohmann::ordered_json config = load_ds_config(memory.path());
    static_cast<void>(ds_config_text(with_autos_from(config, config)));
  });
  refuse_or([&] { static_cast<void>(read_weights_index(memory.path())); });
  static_cast<void>(dtype_in_config(text));
  const std::string as_float16 = config_with_dtype(text, DType::float16);
  if (config_with_dtype(as_float16, DType::float16) != as_float16) std::abort();
  const auto changed = config_with_changes(
      text, {.untied = true, .vocabulary = ModelChanges::Vocabulary{.before = 7, .after = 70}});
  if (changed && !parse_json(text).is_discarded() && parse_json(*changed).is_discarded()) {
    std::abort();
  }
  refuse_or([&] {
    const Manifest manifest = read_manifest(memory.path());
    const std::string written = manifest_text(manifest);
    const MemoryFile again(reinterpret_cast<const uint8_t*>(written.data()), written.size());
    if (manifest_text(read_manifest(again.path())) != written) std::abort();
  });
  refuse_or([&] {
    KeyMap map = KeyMap::parse(text, "fuzz");
    const std::vector<std::string> names{"model.layers.12.weight", "", "a", "a0", "a1"};
    refuse_or([&] {
      for (const KeyMap::Change& change : map.changes(names)) {
        static_cast<void>(change.results([](size_t) {
          return TensorSource::zeros(DType::float32, {4, 6});
        }));
      }
    });
    static_cast<void>(map.unused());
  });
  refuse_or([&] { UniversalInfo{{TpRule::parse(text)}}; });
  if (const auto name = parse_shard_name(text); name && !name->file_name().empty()) {
    if (parse_shard_name(name->file_name()) != name) std::abort();
  }
  refuse_or([&] {
    const SubGroupId id = SubGroupId::parse(text);
    if (id.to_string() != text) std::abort();
  });
  refuse_or([&] {
    const auto path = swap_file_name(12, text);
    if (path.parent_path() != "rank12" || path.filename() != text + ".tensor.swp") std::abort();
  });
  refuse_or([&] { static_cast<void>(parse_size(text, "size")); });
  static_cast<void>(printable(text));
  read_staging(text);
  return 0;
}
