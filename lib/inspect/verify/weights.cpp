// Checks weights: the index must agree with the files, and every tensor must exist once.

#include "checkpoint/weights.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <tuple>

#include "base/keyed_hash.h"
#include "base/text.h"
#include "format/tensors_in.h"
#include "format/training_file.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;

struct Tensor {
  std::string file;
  uint64_t bytes;
};

class WeightsCheck {
 public:
  explicit WeightsCheck(Verification& v) : v_(v) {}

  void check() {
    collect();
    const std::optional<fs::path> path = index_path();
    if (!path) {
      check_siblings();
      v_.skip(Check::index, "there is none");
      return;
    }
    const std::string display = path->filename().string();
    try {
      const WeightsIndex index = read_weights_index(*path);
      check_files(index);
      check_strangers(index);
      check_names(index, display);
      check_size(index, display);
    } catch (const Error& error) {
      v_.add({.check = Check::index,
              .message = error.message(),
              .file = display,
              .tensor = error.where().tensor});
    }
  }

 private:
  std::optional<fs::path> index_path() const {
    if (v_.report.form != "weights") return std::nullopt;
    const std::vector<fs::path> paths = find_weights(*v_.folders, v_.report.folder, v_.model).files;
    if (paths.size() != 1 || !is_weights_index(paths.front())) return std::nullopt;
    return paths.front();
  }

  // Files may be missing according to the numbers in other names.
  void check_siblings() {
    std::vector<fs::path> paths;
    for (const CheckedFile& file : v_.files) paths.push_back(file.path);
    for (const fs::path& missing : missing_siblings(paths)) {
      v_.add({.check = Check::missing,
              .message = "is missing, by the names of the others",
              .file = missing.filename().string()});
    }
  }

  void add(const CheckedFile& file, const std::string& name, uint64_t bytes) {
    const auto [found, is_new] = tensors_.emplace(name, Tensor{file.display, bytes});
    if (is_new) return;
    v_.add({.check = Check::index,
            .message = "is in " + found->second.file + " too",
            .file = file.display,
            .tensor = name});
  }

  void collect() {
    for (CheckedFile& file : v_.files) {
      if (file.whole()) readable_.insert(file.display);
      if (file.safetensors) {
        for (const SafetensorsEntry& entry : file.safetensors->entries()) {
          add(file, entry.name, entry.extent.size);
          total_ += entry.extent.size;
        }
      }
      if (!file.usable() || !file.shard) continue;
      const std::string_view kind = shard_by_keys(file.shard->archive.root());
      if (!kind.empty() && is_weights_name(file.path)) {
        v_.add(Check::layout, file, "",
               "is by its keys a shard of DeepSpeed (" + std::string(kind) + "), not weights");
        continue;
      }
      std::set<std::tuple<std::string, int64_t, Shape>> views;
      for (const FoundTensor& found : tensors_in(file.shard->archive.root())) {
        const auto info = if_supported([&] { return file.shard->archive.info(found.value); });
        if (!info) {
          unsupported_.insert(found.path);
          continue;
        }
        const uint64_t bytes = static_cast<uint64_t>(numel(info->shape)) * size_of(info->dtype);
        add(file, found.path, bytes);
        total_ += bytes;
        if (views.emplace(info->storage_key, info->storage_offset, info->shape).second) {
          total_once_ += bytes;
        }
      }
    }
    total_once_ = total_once_ == 0 ? total_ : total_once_;
  }

  void check_files(const WeightsIndex& index) {
    std::map<std::string, std::string> names;  // file -> first tensor
    for (const auto& [tensor, file] : index.files) names.emplace(file, tensor);
    for (const auto& [file, tensor] : names) {
      if (is_stored(v_.report.folder / file)) continue;
      v_.add({.check = Check::missing,
              .message = "is not there, but the index has tensors in it",
              .file = file,
              .tensor = tensor});
      all_there_ = false;
    }
  }

  // Reports "model-00009-of-00009.safetensors" if the index does not name it.
  void check_strangers(const WeightsIndex& index) {
    std::set<std::string> named;
    for (const auto& entry : index.files) named.insert(entry.second);
    std::error_code failed;
    for (const fs::directory_entry& entry : fs::directory_iterator(v_.report.folder, failed)) {
      const std::string name = content_path(entry.path()).filename().string();
      static const RE2 kShardName(".+-\\d+-of-\\d+\\.(safetensors|bin)");
      if (!RE2::FullMatch(name, kShardName) || named.contains(name)) continue;
      v_.add({.check = Check::extra,
              .message = "is not in the index; perhaps it is left over from another export",
              .file = name});
    }
  }

  void check_names(const WeightsIndex& index, const std::string& display) {
    for (const auto& [tensor, file] : index.files) {
      const auto found = tensors_.find(tensor);
      if (found != tensors_.end() && found->second.file == file) continue;
      if (unsupported_.contains(tensor)) continue;
      std::error_code failed;
      if (found == tensors_.end() && !readable_.contains(file)) {
        all_there_ = false;
        continue;
      }
      v_.add({.check = Check::index,
              .message = found == tensors_.end() ? "is not in " + file + ", where the index has it"
                                                 : "is in " + found->second.file + ", not in " +
                                                       file + ", where the index has it",
              .file = display,
              .tensor = tensor});
      disagrees_ = true;
    }
    for (const auto& [tensor, where] : tensors_) {
      if (index.files.contains(tensor) || !is_weights_name(where.file)) continue;  // an optimizer's
      v_.add({.check = Check::index,
              .message = "is in " + where.file + ", but not in the index",
              .file = display,
              .tensor = tensor});
      disagrees_ = true;
    }
  }

  void check_size(const WeightsIndex& index, const std::string& display) {
    if (!unsupported_.empty()) {
      v_.skip(Check::index, "total_size, since some tensors are of an unsupported kind", true);
      return;
    }
    if (!all_there_ || disagrees_) {
      v_.skip(Check::index, "total_size, since the files lack tensors of the index", true);
      return;
    }
    if (!index.total_size || *index.total_size == total_ || *index.total_size == total_once_) {
      return;
    }
    v_.add({.check = Check::index,
            .message = "total_size is " + std::to_string(*index.total_size) +
                       ", the tensors have " + counted(total_once_, "byte"),
            .file = display,
            .member = "metadata.total_size"});
  }

  Verification& v_;
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> unsupported_;  // names of tensors
  KeyedSet<std::string> readable_;     // files
  uint64_t total_ = 0;
  uint64_t total_once_ = 0;  // views of one storage counted once
  bool all_there_ = true;
  bool disagrees_ = false;
};

}  // namespace

void check_weights(Verification& v) {
  WeightsCheck(v).check();
}

}  // namespace dsckpt
