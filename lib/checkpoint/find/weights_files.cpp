#include "checkpoint/find/weights_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/find/rank_name.h"
#include "deepspeed/shard_name.h"
#include "dsckpt/error.h"
#include "io/content_name.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr std::string_view kIndexSuffix = ".index.json";
constexpr uint64_t kMaxIndexBytes = 256 << 20;
// transformers/utils/__init__.py, peft/utils/constants.py, diffusers/utils/constants.py
constexpr std::array kStems = {"model", "pytorch_model", "adapter_model",
                               "diffusion_pytorch_model"};
constexpr std::array kSuffixes = {".safetensors", ".bin"};

// "model-00001-of-00003.safetensors": what stands before and behind the number, it, and how many.
struct NumberedName {
  std::string front;
  std::string back;
  size_t digits = 0;
  uint64_t number = 0;
  uint64_t count = 0;

  std::string of_number(uint64_t which) const {
    std::string text = std::to_string(which);
    if (text.size() < digits) text.insert(0, digits - text.size(), '0');
    return front + text + back;
  }
};

constexpr std::string_view kOf = "-of-";
constexpr uint64_t kMostNumbered = 100000;

std::optional<NumberedName> numbered_name(const std::string& name) {
  const size_t of = name.rfind(kOf);
  if (of == name.npos) return std::nullopt;
  size_t begin = of;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0) --begin;
  size_t end = of + kOf.size();
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
  const std::string number = name.substr(begin, of - begin);
  const std::string count = name.substr(of + kOf.size(), end - of - kOf.size());
  constexpr size_t kMostDigits = 9;
  if (!is_digits(number) || !is_digits(count) || number.size() > kMostDigits ||
      count.size() > kMostDigits) {
    return std::nullopt;
  }
  NumberedName parsed{name.substr(0, begin), name.substr(of), number.size(), std::stoull(number),
                      std::stoull(count)};
  if (parsed.number > parsed.count || parsed.count > kMostNumbered) return std::nullopt;
  return parsed;
}

}  // namespace

std::vector<fs::path> with_siblings(const fs::path& path) {
  const auto name = numbered_name(content_path(path).filename().string());
  if (!name) return {path};
  std::vector<fs::path> all;
  const uint64_t first = is_stored(path.parent_path() / name->of_number(0)) ? 0 : 1;
  for (uint64_t i = 0; i < name->count; ++i) {
    all.push_back(path.parent_path() / name->of_number(first + i));
  }
  return all;
}

std::vector<fs::path> missing_siblings(const std::vector<fs::path>& paths) {
  std::set<fs::path> missing;
  std::set<std::pair<fs::path, std::string>> seen;
  for (const fs::path& path : paths) {
    const auto name = numbered_name(content_path(path).filename().string());
    if (!name || !seen.emplace(path.parent_path(), name->front + name->back).second) continue;
    for (const fs::path& sibling : with_siblings(path)) {
      if (!is_stored(sibling)) missing.insert(sibling);
    }
  }
  return {missing.begin(), missing.end()};
}

namespace {

// Its stem, ending and form; nullopt for any other file.
std::optional<WeightsSet> set_of(const fs::path& path) {
  std::string name = path.filename().string();
  WeightsSet set;
  if (parse_shard_name(name) || !is_weights_name(path)) return std::nullopt;
  if (const auto rank = parse_rank_name(name); rank && rank->ranks) return std::nullopt;
  if (is_weights_index(path)) {
    set.is_split = true;
    set.index = path;
    name.resize(name.size() - kIndexSuffix.size());
  }
  if (const auto numbered = numbered_name(name)) {
    set.is_split = true;
    const size_t end = numbered->front.find_last_not_of("-_.");
    name = numbered->front.substr(0, end == name.npos ? 0 : end + 1) +
           fs::path(name).extension().string();
  }
  set.ending = fs::path(name).extension().string();
  set.stem = fs::path(name).stem().string();
  if (std::find(kSuffixes.begin(), kSuffixes.end(), set.ending) == kSuffixes.end()) {
    return std::nullopt;
  }
  return set;
}

// Files whose names frameworks give to the same model in another form: Mistral's, Accelerate's.
constexpr std::array kSameModel = {"model", "pytorch_model", "consolidated", "pytorch_model_fsdp"};
constexpr std::array kVariants = {".fp16", ".bf16", ".fp32"};  // of diffusers

std::string without_variant(const std::string& stem) {
  for (const std::string_view variant : kVariants) {
    if (stem.ends_with(variant)) return stem.substr(0, stem.size() - variant.size());
  }
  return stem;
}

// The same for forms of one model.
std::string family_of(const WeightsSet& set) {
  const std::string stem = without_variant(set.stem);
  const bool is_model = std::find(kSameModel.begin(), kSameModel.end(), stem) != kSameModel.end();
  return is_model ? kSameModel.front() : stem;
}

bool is_known(const WeightsSet& set) {
  return set.index || std::find(kStems.begin(), kStems.end(), set.stem) != kStems.end();
}

// Transformers' order.
auto place_of(const WeightsSet& set) {
  const auto stem = std::find(kStems.begin(), kStems.end(), without_variant(set.stem));
  const auto ending = std::find(kSuffixes.begin(), kSuffixes.end(), set.ending);
  return std::tuple(stem - kStems.begin(), set.stem.size(), ending - kSuffixes.begin(),
                    set.is_split, set.stem);
}

// Takes the files that indices name out of the other sets. An index of files that are not there is
// none beside other weights. One that cannot be read is the only set: its error is the answer.
void take_named(const fs::path& folder, std::vector<WeightsSet>& sets) {
  std::set<fs::path> named;
  const size_t count = sets.size();
  std::erase_if(sets, [&](WeightsSet& set) {
    if (!set.index || count == 1) return false;
    bool has_some = false;
    for (const auto& [tensor, file] : read_weights_index(*set.index).files) {
      named.insert(folder / file);
      has_some = has_some || is_stored(folder / file);
    }
    return !has_some;
  });
  std::erase_if(sets, [&](WeightsSet& set) {
    if (set.index) return false;
    std::erase_if(set.files, [&](const fs::path& file) { return named.contains(file); });
    return set.files.empty();
  });
}

}  // namespace

std::string weights_stem(const fs::path& file) {
  const std::optional<WeightsSet> set = set_of(content_path(file));
  return set ? set->stem : "";
}

std::vector<WeightsSet> weights_sets(Folders& folders, const fs::path& folder) {
  std::map<std::tuple<std::string, std::string, bool>, WeightsSet> found;
  const ListedFolder& listed = folders[folder];
  for (const auto* paths : {&listed.files, &listed.folders}) {  // a folder is no file, and says so
    for (const fs::path& path : *paths) {
      const auto own = set_of(path);
      if (!own) continue;
      WeightsSet& set =
          found.try_emplace({own->stem, own->ending, own->is_split}, *own).first->second;
      if (own->index) set.index = own->index;
      if (!own->index) set.files.push_back(path);
    }
  }
  std::vector<WeightsSet> sets;
  for (auto& [key, set] : found) sets.push_back(std::move(set));
  std::sort(sets.begin(), sets.end(),
            [](const WeightsSet& a, const WeightsSet& b) { return place_of(a) < place_of(b); });
  take_named(folder, sets);
  for (WeightsSet& set : sets) {
    set.name = set.stem;
    const auto same = std::count_if(
        sets.begin(), sets.end(), [&](const WeightsSet& other) { return other.stem == set.stem; });
    if (same > 1) set.name = set.first().filename().string();
  }
  return sets;
}

void join_unknown(std::vector<WeightsSet>& sets) {
  if (sets.size() < 2 || std::any_of(sets.begin(), sets.end(), is_known)) return;
  WeightsSet joined{.ending = sets.front().ending};
  for (const WeightsSet& set : sets) {
    if (set.ending != joined.ending) continue;
    joined.files.insert(joined.files.end(), set.files.begin(), set.files.end());
  }
  std::sort(joined.files.begin(), joined.files.end());
  if (joined.ending == kSuffixes.front()) sets = {std::move(joined)};
}

std::string take_first_form(std::vector<WeightsSet>& sets) {
  if (sets.empty()) return "";
  constexpr std::string_view kAdapter = "adapter_model";
  const WeightsSet& first = sets.front();
  std::string left;
  for (size_t i = 1; i < sets.size(); ++i) {
    const WeightsSet& other = sets[i];
    const bool is_form = family_of(other) == family_of(first) &&
                         (other.stem != first.stem || other.ending != first.ending);
    const bool is_adapter = other.stem == kAdapter && family_of(first) == kSameModel.front();
    if (!is_form && !is_adapter) return "";
    left += (left.empty() ? "" : ", ") + other.first().filename().string();
  }
  sets.resize(1);
  if (left.empty()) return "";
  return "reading " + sets.front().first().filename().string() +
         "; beside it, and left out: " + left +
         " (--model reads another: its name without the ending)";
}

UsageError no_such_model(const std::string& name, const std::string& display) {
  return UsageError("--model: no model is called '" + name + "': " + display +
                    " holds one, without a name");
}

bool is_weights_index(const fs::path& path) {
  return path.string().ends_with(kIndexSuffix);
}

bool is_weights_name(const fs::path& path) {
  const std::string name = content_path(path).filename().string();
  const auto starts = [&](const char* stem) { return name.starts_with(stem); };
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  return is_weights_index(name) || name.ends_with(kSuffixes.front()) ||
         (std::any_of(kStems.begin(), kStems.end(), starts) &&
          std::any_of(kSuffixes.begin(), kSuffixes.end(), ends));
}

WeightsIndex read_weights_index(const fs::path& path) {
  const InputFile file(path);
  return in_context({.file = path.string()}, [&] {
    if (file.size() > kMaxIndexBytes) throw CorruptError({}, "is too long to be an index");
    const std::vector<std::byte> bytes = file.read(0, file.size());
    const json index = parse_json(as_text(bytes));
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      throw CorruptError({}, "is not an index: it has no object \"weight_map\"");
    }
    WeightsIndex read;
    for (const auto& [name, where] : index["weight_map"].items()) {
      const fs::path named = where.is_string() ? where.get<std::string>() : std::string();
      if (named.empty() || named.is_absolute() ||
          std::any_of(named.begin(), named.end(), [](const fs::path& p) { return p == ".."; })) {
        throw CorruptError({.tensor = name}, "is in no file of the folder");
      }
      read.files.emplace(name, named.string());
    }
    const json metadata = index.value("metadata", json());
    if (metadata.is_object() && metadata.contains("total_size") &&
        metadata["total_size"].is_number_unsigned()) {
      read.total_size = metadata["total_size"].get<uint64_t>();
    }
    return read;
  });
}

}  // namespace dsckpt
