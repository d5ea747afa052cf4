// flip_bits CHECKPOINT TAG SEED COUNT [FIRST STEP]
//
// Flips one bit of one byte in the zips of a checkpoint's copy, and runs every conversion on it.
// Each must refuse the file by its name, and by the record's if the byte belongs to the data of a
// record. Otherwise the output must be the same as without the flip. In a copy of the whole file it
// may differ in this bit, if it belongs to a version or attribute that no reader uses. COUNT 0:
// every STEPth byte from FIRST on, so that several processes share them; else COUNT bytes, drawn by
// SEED.
//
// Prints a line for each unnoticed flip, and the number of flips of each kind. Exits with 1 if one
// was unnoticed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsckpt/checkpoint.h"
#include "dsckpt/dcp.h"
#include "dsckpt/error.h"
#include "dsckpt/pack.h"
#include "dsckpt/reshard.h"
#include "dsckpt/run.h"
#include "dsckpt/universal.h"
#include "dsckpt/weights.h"
#include "format/zip.h"
#include "support/temp_file.h"
#include "support/zip_bytes.h"

namespace dsckpt {
namespace {

namespace fs = std::filesystem;

using Contents = std::map<std::string, std::string>;  // by path

Contents contents_of(const fs::path& folder) {
  Contents contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      contents[entry.path().lexically_relative(folder)] = test::read_all(entry.path());
    }
  }
  return contents;
}

struct Conversion {
  const char* name;
  std::function<Job(const fs::path& folder)> plan;
  RunOptions options;
};

std::vector<Conversion> conversions(const std::string& tag, uint32_t ranks) {
  const RunOptions one{.threads = 1, .io = IoMode::buffered};
  RunOptions packed = one;
  packed.pack = 3;
  const auto open = [tag](const fs::path& folder, bool states) {
    return Source::open(folder, {.tag = tag, .optimizer_states = states});
  };
  return {
      {"weights", [=](auto& in) { return plan_weights(open(in, false)); }, one},
      {"states",
       [=](auto& in) {
         return plan_weights(open(in, true), {.format = &kSafetensors, .states = true});
       },
       one},
      {"universal", [=](auto& in) { return plan_universal(open(in, true)); }, one},
      {"reshard", [=](auto& in) { return plan_reshard(open(in, true), {.dp = 2 * ranks}); }, one},
      {"dcp", [=](auto& in) { return plan_dcp(open(in, true), {.dp = ranks + 1}); }, one},
      {"strip", [=](auto& in) { return plan_strip(open(in, true), Keep::resume); }, one},
      {"strip to weights", [=](auto& in) { return plan_strip(open(in, false), Keep::weights); },
       one},
      {"pack", [](auto& in) { return plan_pack(in); }, packed},
  };
}

struct Outcome {
  std::optional<Error> error;
  std::vector<std::string> notes;
  Contents written;
};

Outcome outcome_of(const Conversion& conversion, const fs::path& input, const fs::path& output) {
  Outcome outcome;
  try {
    const Job job = conversion.plan(input);
    outcome.notes = job.notes();
    run(job, output, conversion.options);
    outcome.written = contents_of(output);
  } catch (const Error& error) {
    outcome.error.emplace(error);
  }
  fs::remove_all(output);
  return outcome;
}

struct Record {
  std::string name;
  uint64_t size = 0;
};

// The key is the offset of the data.
std::map<uint64_t, Record> records_of(const ZipReader& zip) {
  std::map<uint64_t, Record> records;
  for (const ZipEntry& entry : zip.entries()) {
    records.emplace(zip.data(entry).offset, Record{std::string(entry.name), entry.size});
  }
  return records;
}

class Campaign {
 public:
  Campaign(const fs::path& checkpoint, const std::string& tag) : folder_(scratch_.path() / "in") {
    fs::copy(checkpoint, folder_, fs::copy_options::recursive);
    uint32_t ranks = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      fs::permissions(entry.path(), fs::perms::owner_read | fs::perms::owner_write);
      InputFiles files;
      const FileId id = files.add(entry.path());
      ranks += entry.path().string().ends_with("_mp_rank_00_optim_states.pt") ? 1 : 0;
      if (!ZipReader::probe(files[id])) continue;
      const ZipReader zip = ZipReader::open(files[id], id);
      std::string bytes = test::read_all(entry.path());
      std::set<uint64_t> unused = test::unused_bytes(bytes, zip);
      size_ += bytes.size();
      files_.push_back({entry.path(), std::move(bytes), records_of(zip), std::move(unused)});
    }
    for (const Conversion& conversion : conversions(tag, std::max(ranks, 1u))) {
      Outcome clean = outcome_of(conversion, folder_, output_);
      if (clean.error) {
        std::printf("%s is left out: %s\n", conversion.name, clean.error->what());
      } else {
        used_.emplace_back(conversion, std::move(clean.written));
      }
    }
    if (used_.empty()) throw std::runtime_error("nothing can be made of this checkpoint");
  }

  uint64_t size() const { return size_; }

  void flip(uint64_t byte, unsigned bit) {
    size_t which = 0;
    while (byte >= files_[which].bytes.size()) byte -= files_[which++].bytes.size();
    const File& file = files_[which];
    std::string damaged = file.bytes;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
    put(file.path, damaged, byte);
    for (const auto& [conversion, clean] : used_) {
      const std::string problem =
          judge(outcome_of(conversion, folder_, output_), clean, file, byte);
      if (problem.empty()) continue;
      ++unseen_;
      std::printf("%s: byte %llu bit %u: %s: %s\n", file.path.filename().c_str(),
                  static_cast<unsigned long long>(byte), bit, conversion.name, problem.c_str());
    }
    put(file.path, file.bytes, byte);
    ++flips_;
  }

  // Returns true if every flip was noticed.
  bool report() const {
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "%llu flips, %zu conversions each: %llu refused, %llu without effect, "
        "%llu passed on in unused bytes, %llu unseen\n",
        number(flips_), used_.size(), number(refused_), number(same_), number(passed_on_),
        number(unseen_));
    return unseen_ == 0;
  }

 private:
  struct File {
    fs::path path;
    std::string bytes;
    std::map<uint64_t, Record> records;
    std::set<uint64_t> unused;
  };

  static void put(const fs::path& path, const std::string& bytes, uint64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put(bytes[at]);
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
  }

  // Returns the error in the outcome, or "".
  std::string judge(const Outcome& outcome, const Contents& clean, const File& file,
                    uint64_t byte) {
    const std::string name = file.path.filename();
    if (!outcome.error) {
      // A file that is no longer an archive is packed byte by byte, with a note.
      for (const std::string& note : outcome.notes) {
        if (note.find(name) != std::string::npos && note.find("as plain bytes") != note.npos) {
          ++same_;
          return "";
        }
      }
      if (outcome.written == clean) {
        ++same_;
      } else if (file.unused.contains(byte)) {
        ++passed_on_;
      } else {
        return "other bytes were written";
      }
      return "";
    }
    ++refused_;
    const std::string text = outcome.error->what();
    // Values that ranks share are compared before the checksums are complete.
    if (text.find("are not the same") != text.npos) return "";
    if (text.find(name) == text.npos) return "the file is not named: " + text;
    const auto next = file.records.upper_bound(byte);
    if (next == file.records.begin()) return "";
    const auto& [begin, record] = *std::prev(next);
    if (byte < begin + record.size && text.find(record.name) == text.npos) {
      return "the record " + record.name + " is not named: " + text;
    }
    return "";
  }

  const test::TempFolder scratch_;
  const fs::path folder_;
  const fs::path output_ = scratch_.path() / "out";
  std::vector<File> files_;
  std::vector<std::pair<Conversion, Contents>> used_;
  uint64_t size_ = 0;
  uint64_t flips_ = 0;
  uint64_t refused_ = 0;
  uint64_t same_ = 0;
  uint64_t passed_on_ = 0;
  uint64_t unseen_ = 0;
};

int flip_bits(const std::vector<std::string>& arguments) {
  const auto number = [&](size_t i) { return std::stoull(arguments.at(i)); };
  Campaign campaign(arguments.at(0), arguments.at(1));
  if (campaign.size() == 0) {
    std::printf("no zips, and no checksums\n");
    return 0;
  }
  std::mt19937_64 random(number(2));
  const uint64_t count = number(3);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t byte = random() % campaign.size();
    campaign.flip(byte, static_cast<unsigned>(random() % 8));
  }
  if (count == 0) {
    for (uint64_t byte = number(4); byte < campaign.size(); byte += number(5)) {
      campaign.flip(byte, static_cast<unsigned>(random() % 8));
    }
  }
  return campaign.report() ? 0 : 1;
}

}  // namespace
}  // namespace dsckpt

int main(int argc, char** argv) {
  try {
    return dsckpt::flip_bits({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flip_bits: %s\n", error.what());
    return 2;
  }
}
