// Common parts of tests of plans: inputs of random bytes, and a sink in memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt::test {

inline constexpr uint64_t kMiB = 1 << 20;

inline std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, size - i));
  }
  return bytes;
}

inline std::vector<PlannedInput> planned(const InputFiles& inputs) {
  std::vector<PlannedInput> known;
  for (FileId id = 0; id < inputs.size(); ++id) {
    known.push_back({inputs[id].display(), inputs[id].size()});
  }
  return known;
}

// Which bytes of an output a sink was given: none may come twice. Any thread.
class GivenOnce {
 public:
  void add(uint64_t begin, uint64_t end) {
    if (begin == end) return;
    const std::lock_guard lock(mutex_);
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.end() && next->first < end) throw std::logic_error("written twice");
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->second > begin) throw std::logic_error("written twice");
      if (before->second == begin) {
        begin = before->first;
        ranges_.erase(before);
      }
    }
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      ranges_.erase(next);
    }
    ranges_[begin] = end;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> ranges_;  // to their ends
};

// Holds the outputs. A write outside its output, of what was written already, or after finish(),
// and a second finish(), throw.
class MemorySink : public Sink {
 public:
  explicit MemorySink(const CopyPlan& plan)
      : given_(plan.outputs().size()), finished_(plan.outputs().size()) {
    for (const PlannedFile& file : plan.outputs()) outputs_.emplace_back(file.size, '\xcd');
  }

  void write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) override {
    ++writes_;
    std::string& output = outputs_.at(out);
    if (finished_.at(out)) throw std::logic_error("written after the end");
    if (offset > output.size() || bytes.size() > output.size() - offset) {
      throw std::logic_error("written beyond the end");
    }
    given_.at(out).add(offset, offset + bytes.size());
    std::memcpy(output.data() + offset, bytes.data(), bytes.size());
  }
  void finish(OutputId out) override {
    if (finished_.at(out).exchange(true)) throw std::logic_error("finished twice");
  }

  const std::vector<std::string>& outputs() const { return outputs_; }
  bool all_finished() const {
    bool all = true;
    for (const auto& one : finished_) all = all && one;
    return all;
  }
  bool is_finished(OutputId out) const { return finished_.at(out); }
  int writes() const { return writes_; }

 private:
  std::vector<std::string> outputs_;
  std::deque<GivenOnce> given_;
  std::deque<std::atomic<bool>> finished_;
  std::atomic<int> writes_{0};
};

}  // namespace dsckpt::test
