// Checks the grid of ranks: the files that must exist, and those that must not. engine.py
// _get_ckpt_name, _get_zero_ckpt_name.

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/model_states.h"
#include "checkpoint/optim_states.h"
#include "deepspeed/keys.h"
#include "deepspeed/run_config.h"
#include "inspect/verify/verification.h"

namespace dsckpt {
namespace {

using Kind = ShardName::Kind;

constexpr int64_t kMaxRanks = 1 << 20;

// The number of ranks, as one file states it.
struct Word {
  CheckedFile* file;
  uint32_t rank;   // of the file itself
  uint32_t count;  // the stated number
};

// Returns the number of ranks with the fewest files against it, and of equals the one with the most
// for it. A file whose rank would not exist has no vote: it may be left over from a larger run.
std::optional<uint32_t> agreed(const std::vector<Word>& words) {
  struct Votes {
    size_t against;
    size_t in_favour;
    uint32_t count;
  };
  std::optional<Votes> best;
  std::set<uint32_t> counts;
  for (const Word& word : words) counts.insert(word.count);
  for (const uint32_t count : counts) {
    Votes votes{0, 0, count};
    for (const Word& word : words) {
      if (word.rank < count) ++(word.count == count ? votes.in_favour : votes.against);
    }
    if (!best || votes.against < best->against ||
        (votes.against == best->against && votes.in_favour > best->in_favour)) {
      best = votes;
    }
  }
  return best ? std::optional(best->count) : std::nullopt;
}

bool is_model(const CheckedFile& file) {
  return file.name->kind == Kind::model_states || file.name->kind == Kind::zero_model_states;
}

class Grid {
 public:
  explicit Grid(Verification& v) : v_(v) {}

  void check() {
    collect();
    const auto dp = agreed(dp_words_);
    const auto mp = agreed(mp_words_);
    report_dissent(dp_words_, dp, keys::kPartitionCount);
    report_dissent(mp_words_, mp, keys::kMpWorldSize);
    // Stage 0 needs no number: it has files of mp ranks only.
    mp_ = mp.value_or(largest_mp() + 1);
    dp_ = dp.value_or(largest_dp() + 1);  // if no readable file states it
    find_stage();
    const bool universal = v_.report.form == "universal";
    check_kind(Kind::model_states, stage_3_ && !is_for_any_stage(v_) ? 0 : 1);
    check_kind(Kind::zero_model_states, stage_3_ ? dp_ : 0);
    if (!universal) check_kind(Kind::optim_states, zero_ ? dp_ : 0);
    leave_out();
  }

 private:
  void collect() {
    for (CheckedFile& file : v_.files) {
      if (!file.usable() || !file.name) continue;
      const Kind kind = file.name->kind;
      const Shard& shard = *file.shard;
      if (is_model(file)) {
        v_.attempt(Check::layout, file, [&] {
          const Fields fields(shard, shard.archive.root());
          add_word(file, mp_words_, file.name->mp_rank, fields.integer_if_any(keys::kMpWorldSize));
          const uint32_t rank = kind == Kind::zero_model_states ? file.name->dp_rank : 0;
          const auto dp = fields.integer_if_any(keys::kDpWorldSize);
          const auto config = fields.get(keys::kDsConfig).value_or(pickle::Value());
          // Under MiCS fewer ranks save.
          if (dp && saving_ranks(config, *dp) == *dp) add_word(file, dp_words_, rank, dp);
        });
      } else if (kind == Kind::optim_states) {
        v_.attempt(Check::layout, file, [&] {
          const std::vector<int64_t> counts = partition_counts(optimizer_state(shard));
          if (counts.empty()) throw CorruptError({}, "partition_count is empty");
          // Experts are partitioned over fewer ranks than the other parameters.
          add_word(file, dp_words_, file.name->dp_rank,
                   *std::max_element(counts.begin(), counts.end()));
        });
      }
    }
  }

  static void add_word(CheckedFile& file, std::vector<Word>& words, uint32_t rank,
                       std::optional<int64_t> count) {
    if (!count) return;
    if (*count < 1 || *count > kMaxRanks) {
      throw CorruptError({}, "claims that there are " + counted(*count, "rank"));
    }
    words.push_back({&file, rank, static_cast<uint32_t>(*count)});
  }

  void report_dissent(const std::vector<Word>& words, std::optional<uint32_t> count,
                      std::string_view key) {
    for (const Word& word : words) {
      if (!count || word.count == *count || word.rank >= *count) continue;
      const bool of_model = is_model(*word.file);
      v_.add(Check::layout, *word.file,
             of_model && key == keys::kPartitionCount ? std::string(keys::kDpWorldSize)
             : of_model                               ? std::string(key)
                        : std::string(keys::kOptimizerStateDict) + "." + std::string(key),
             "gives " + counted(word.count, "rank") + ", the other files give " +
                 std::to_string(*count));
      word.file->suspect = true;
    }
  }

  uint32_t largest_mp() const {
    uint32_t largest = 0;
    for (const CheckedFile& file : v_.files) {
      if (file.name) largest = std::max(largest, file.name->mp_rank);
    }
    return largest;
  }

  uint32_t largest_dp() const {
    uint32_t largest = 0;
    for (const CheckedFile& file : v_.files) {
      const bool is_of_zero = file.name && (file.name->kind == Kind::zero_model_states ||
                                            file.name->kind == Kind::optim_states);
      if (is_of_zero) largest = std::max(largest, file.name->dp_rank);
    }
    return largest;
  }

  // Finds out whether the checkpoint has optimizer-states files, and a model-states file for each
  // rank.
  void find_stage() {
    size_t of_ranks = 0;
    size_t of_all = 0;
    for (CheckedFile* file : v_.of_kind(Kind::optim_states)) {
      try {
        ++(zero_stage_of(*file->shard) == 3 ? of_ranks : of_all);
      } catch (const Error&) {
        continue;  // check_optim_files_agree reports it
      }
    }
    zero_ = v_.folder.has(Kind::optim_states);
    stage_3_ = of_ranks > of_all;
    if (of_ranks + of_all > 0) return;
    stage_3_ = v_.folder.has(Kind::zero_model_states);
    for (CheckedFile* file : v_.of_kind(Kind::model_states)) {
      zero_ = zero_ || has_optimizer_elsewhere(*file->shard);
    }
    zero_ = zero_ || stage_3_;
  }

  // Every mp rank must have one file of kind `kind` for each rank from 0 to `dp` - 1.
  void check_kind(Kind kind, uint32_t dp) {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<CheckedFile*>> by_rank;
    for (CheckedFile& file : v_.files) {
      if (file.name && file.name->kind == kind) {
        by_rank[{file.name->mp_rank, file.name->dp_rank}].push_back(&file);
      }
    }
    for (auto& [rank, files] : by_rank) {
      if (rank.first >= mp_ || rank.second >= dp) {
        for (CheckedFile* file : files) report_extra(*file, dp);
      } else {
        while (files.size() > 1) report_second(files);
      }
    }
    if (dp == 0) return;
    const ShardName model = example(kind, by_rank.empty() ? nullptr : by_rank.begin()->second[0]);
    size_t missing = 0;
    for (uint32_t mp = 0; mp < mp_; ++mp) {
      for (uint32_t rank = 0; rank < dp; ++rank) {
        if (by_rank.contains({mp, rank})) continue;
        if (++missing > kMaxMissing) return;
        ShardName name = model;
        name.mp_rank = mp;
        name.dp_rank = rank;
        report_missing(name);
      }
    }
  }

  uint64_t ranks(uint32_t dp) const { return uint64_t{mp_} * dp; }

  ShardName example(Kind kind, const CheckedFile* file) const {
    ShardName name{.kind = kind};
    if (file != nullptr) name = *file->name;
    if (file == nullptr && kind == Kind::optim_states) name.bf16 = is_bf16();
    return name;
  }

  bool is_bf16() const {
    for (const CheckedFile& file : v_.files) {
      if (!file.usable() || !file.name || !is_model(file)) continue;
      const pickle::Value config = file.shard->archive.root().find_or_none(keys::kDsConfig);
      return run_config(config, {}).bf16;
    }
    return false;
  }

  void report_missing(const ShardName& name) {
    v_.add({.check = Check::missing,
            .message = "is not there: the checkpoint has " + counted(ranks(dp_), "rank"),
            .file = v_.folder.display(v_.folder.path / name.file_name()),
            .rank = FindingRank{name.dp_rank, name.mp_rank}});
  }

  void report_extra(CheckedFile& file, uint32_t dp) {
    v_.add(Check::extra, file, "",
           dp == 0 ? std::string("does not belong to a checkpoint of this stage; perhaps it is "
                                 "left over from another one of the same tag")
                   : "is one too many: the checkpoint has " + counted(ranks(dp), "rank") +
                         "; perhaps an older one of the same tag was larger");
    file.left_out = true;
  }

  // If a rank has files of both spellings, the one for the run's own precision counts.
  void report_second(std::vector<CheckedFile*>& files) {
    const bool bf16 = is_bf16();
    auto other = std::find_if(files.begin(), files.end(),
                              [&](const CheckedFile* file) { return file->name->bf16 != bf16; });
    if (other == files.end()) other = std::prev(files.end());
    v_.add(Check::extra, **other, "",
           "is a second file of a rank; the other is " +
               files[*other == files[0] ? 1 : 0]->path.filename().string());
    (*other)->left_out = true;
    files.erase(other);
  }

  // The readers get the remaining files.
  void leave_out() {
    std::set<std::filesystem::path> paths;
    for (const CheckedFile& file : v_.files) {
      if (file.left_out) paths.insert(file.path);
    }
    std::erase_if(v_.folder.shards,
                  [&](const ShardFile& shard) { return paths.contains(shard.path); });
  }

  Verification& v_;
  std::vector<Word> dp_words_;
  std::vector<Word> mp_words_;
  uint32_t mp_ = 1;
  uint32_t dp_ = 1;
  bool zero_ = false;
  bool stage_3_ = false;
};

}  // namespace

void check_ranks(Verification& v) {
  Grid(v).check();
}

}  // namespace dsckpt
