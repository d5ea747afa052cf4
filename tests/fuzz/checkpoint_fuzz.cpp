// A whole checkpoint with one file that is anything. It is a zip as it is, or a pickle in the
// file's own zip, with right checksums, or edits of the file's own pickle. It is read and planned
// for every use, or refused.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "dsckpt/reshard.h"
#include "dsckpt/universal.h"
#include "dsckpt/weights.h"
#include "format/zip.h"
#include "fuzz/edited_pickle.h"
#include "fuzz/refuse_as.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"
#include "support/plan_runner.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;

// Copies of small checkpoints.
class Checkpoints {
 public:
  Checkpoints() {
    for (const char* name : {"z0_bf16_w2", "z2_bf16_w2", "z3_fp32_small_subgroups_w2"}) {
      const fs::path copy = folder_.path() / name;
      fs::copy(fs::path(DSCKPT_TESTDATA) / "checkpoints" / name / "ckpt", copy,
               fs::copy_options::recursive);
      for (const auto& entry : fs::recursive_directory_iterator(copy)) {
        fs::permissions(entry.path(), fs::perms::owner_all);
        if (entry.path().extension() == ".pt") files_.push_back({copy, entry.path()});
      }
    }
    std::sort(files_.begin(), files_.end());
  }

  // The folder and the path of one of the files.
  const std::pair<fs::path, fs::path>& file(size_t which) const {
    return files_[which % files_.size()];
  }

 private:
  const test::TempFolder folder_{test::memory_path()};
  std::vector<std::pair<fs::path, fs::path>> files_;
};

// The zip at `path` with what `change` makes of its data.pkl.
template <typename Change>
std::string with_pickle(const fs::path& path, Change change) {
  InputFiles files;
  const FileId id = files.add(path);
  const ZipReader zip = ZipReader::open(files[id], id);
  const std::string_view first = zip.entries().front().name;
  const std::string prefix(first.substr(0, first.find('/')));
  ZipLayout changed(prefix);
  for (const ZipEntry& entry : zip.entries()) {
    const std::string name(entry.name.substr(prefix.size() + 1));
    const std::vector<std::byte> bytes = zip.read(entry);
    changed.add(name, name == "data.pkl" ? change(as_text(bytes)) : std::string(as_text(bytes)));
  }
  PlanBuilder plan;
  std::move(changed).lay_out(plan, "changed");
  return test::run_plan(plan.finish(), InputFiles()).front();
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  if (!file.flush()) std::abort();
}

// Makes the file at `path` from an input. Its first byte has chosen the file, unless it is a zip's;
// what follows is a pickle, or edits if that byte is large.
std::string changed(const fs::path& path, std::string_view input) {
  if (input.starts_with("PK")) return std::string(input);
  const bool is_edits = static_cast<uint8_t>(input[0]) >= 0x80;
  input.remove_prefix(1);
  return with_pickle(path, [&](std::string_view pickle) {
    return is_edits ? edited_pickle(pickle, as_byte_span(input)) : std::string(input);
  });
}

constexpr auto refuse_or = [](auto&& use) {
  refuse_as<ErrorKind::usage, ErrorKind::corrupt, ErrorKind::inconsistent, ErrorKind::unsupported>(
      use);
};

void plan_all(const Source& source) {
  refuse_or([&] { static_cast<void>(plan_weights(source, {.states = true})); });
  refuse_or([&] { static_cast<void>(plan_universal(source)); });
  refuse_or([&] { static_cast<void>(plan_reshard(source, {.dp = 3})); });
}

void use(const fs::path& folder) {
  bool is_whole = false;
  refuse_or([&] {
    const Source source = Source::open(folder, {.optimizer_states = true});
    is_whole = true;
    plan_all(source);
  });
  if (is_whole) return;
  refuse_or(
      [&] { plan_all(Source::open(folder, {.optimizer_states = true, .allow_missing = true})); });
}

}  // namespace
}  // namespace dsckpt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsckpt;
  static const Checkpoints checkpoints;
  if (size == 0) return 0;
  const auto& [folder, path] = checkpoints.file(data[0]);
  const std::string good = test::read_all(path);
  write(path, changed(path, {reinterpret_cast<const char*>(data), size}));
  use(folder);
  write(path, good);
  return 0;
}
