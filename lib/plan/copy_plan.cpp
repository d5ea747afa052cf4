#include "plan/copy_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {

uint64_t CopyPlan::bytes_written() const {
  uint64_t sum = 0;
  for (const PlannedFile& file : outputs_) sum += file.size;
  return sum;
}

uint64_t CopyPlan::bytes_read() const {
  uint64_t sum = 0;
  for (const CopyItem& item : items_) sum += item.rows * item.row_bytes * item.reads_of_a_byte();
  return sum;
}

namespace {

void check_paths(const std::vector<PlannedFile>& outputs) {
  std::unordered_set<std::string_view> seen;
  for (const PlannedFile& file : outputs) {
    const std::string& path = file.path;
    bool plain = path.find('\0') == std::string::npos;
    for (size_t begin = 0; plain && begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string_view part = std::string_view(path).substr(begin, end - begin);
      plain = !part.empty() && part != "." && part != "..";
      begin = end + 1;
    }
    if (!plain) {
      // what() ends at a NUL.
      throw InconsistentError({.file = path.substr(0, path.find('\0'))},
                              "is not a path inside the output folder");
    }
    if (!seen.insert(path).second) throw InconsistentError({.file = path}, "is written twice");
  }
  for (const PlannedFile& file : outputs) {
    const std::string_view path = file.path;
    for (size_t i = path.find('/'); i != path.npos; i = path.find('/', i + 1)) {
      if (seen.contains(path.substr(0, i))) {
        throw InconsistentError({.file = file.path}, "is below another output file");
      }
    }
  }
}

// `rows` rows of `row_bytes` bytes, the first at `src`, of `name`, which has `size` bytes.
void check_rows(const std::string& name, uint64_t size, uint64_t src, uint64_t row_bytes,
                uint64_t rows, int64_t stride, DType dtype) {
  if (rows == 0 || row_bytes == 0 || row_bytes % size_of(dtype) != 0 || (rows > 1 && stride < 0)) {
    throw InconsistentError({.file = name, .offset = src}, "malformed item");
  }
  const uint64_t last =
      rows == 1 ? src : checked_add(src, checked_mul(rows - 1, static_cast<uint64_t>(stride)));
  const uint64_t end = checked_add(last, row_bytes);
  if (end > size) {
    throw InconsistentError(
        {.file = name, .offset = src},
        "reads up to byte " + std::to_string(end) + " of " + std::to_string(size));
  }
}

const PlannedInput& input_of(FileId in, const CopyItem& item, const std::string& output,
                             const std::vector<PlannedInput>& inputs) {
  if (in < inputs.size()) return inputs[in];
  throw InconsistentError({.file = output, .offset = item.dst}, "reads an unknown file");
}

void check_source(const CopyItem& item, const std::string& output,
                  const std::vector<PlannedInput>& inputs, uint64_t literal_bytes) {
  const bool literal = item.op == Op::literal;
  const bool zeros = item.op == Op::zeros;
  if ((item.from != item.to && (literal || zeros || item.op == Op::copy)) ||
      (zeros && item.rows != 1)) {
    throw InconsistentError({.file = output, .offset = item.dst}, "malformed item");
  }
  if (item.op == Op::interleave) return;  // check_operands
  const PlannedInput* input =
      item.reads_input() ? &input_of(item.in, item, output, inputs) : nullptr;
  const uint64_t size = literal ? literal_bytes : zeros ? item.row_bytes : input->size;
  check_rows(input == nullptr ? output : input->display, size, zeros ? 0 : item.src, item.row_bytes,
             item.rows, item.src_stride, item.from);
}

void check_operands(const CopyPlan& plan, const CopyItem& item, const std::string& output,
                    const std::vector<PlannedInput>& inputs) {
  const bool mean = item.op == Op::mean;
  const bool same = item.op == Op::same;
  const bool interleave = item.op == Op::interleave;
  const uint64_t count = plan.operands().size();
  if (!mean && !same && !interleave && item.operand_count == 0) return;
  if ((!mean && !same && !interleave) || (!interleave && item.rows != 1) ||
      (interleave && item.operand_count < 2) || item.operand_begin > count ||
      item.operand_count > count - item.operand_begin || (mean && item.from != DType::float32) ||
      (same && item.what >= plan.texts().size())) {
    throw InconsistentError({.file = output, .offset = item.dst}, "malformed item");
  }
  uint64_t row_bytes = 0;
  for (const Operand& operand : plan.operands_of(item)) {
    const PlannedInput& input = input_of(operand.in, item, output, inputs);
    if (interleave) row_bytes = checked_add(row_bytes, operand.row_bytes);
    check_rows(input.display, input.size, operand.src,
               interleave ? operand.row_bytes : item.row_bytes, item.rows, operand.stride,
               item.from);
  }
  if (interleave && row_bytes != item.row_bytes) {
    throw InconsistentError({.file = output, .offset = item.dst}, "malformed item");
  }
}

}  // namespace

void CopyPlan::validate(const std::vector<PlannedInput>& inputs) const {
  check_paths(outputs_);

  auto item = items_.begin();
  for (OutputId out = 0; out < outputs_.size(); ++out) {
    const PlannedFile& file = outputs_[out];
    uint64_t written = 0;
    for (; item != items_.end() && item->out == out; ++item) {
      check_source(*item, file.path, inputs, literals_.size());
      check_operands(*this, *item, file.path, inputs);
      const uint64_t dst_row_bytes =
          checked_mul(item->row_bytes / size_of(item->from), size_of(item->to));
      if (item->dst != written) {
        throw InconsistentError(
            {.file = file.path, .offset = std::min(item->dst, written)},
            item->dst > written ? "bytes that nothing writes" : "bytes that are written twice");
      }
      written = checked_add(written, checked_mul(item->rows, dst_row_bytes));
    }
    if (written != file.size) {
      throw InconsistentError(
          {.file = file.path, .offset = std::min(written, file.size)},
          written < file.size ? "bytes that nothing writes" : "is written beyond its end");
    }
  }
  if (item != items_.end()) throw InconsistentError({}, "an item writes to an unknown file");

  const auto item_starts_at = [&](OutputId out, uint64_t dst) {
    const auto found = std::lower_bound(
        items_.begin(), items_.end(), std::pair(out, dst),
        [](const CopyItem& a, const auto& b) { return std::pair(a.out, a.dst) < b; });
    return dst == outputs_[out].size ||
           (found != items_.end() && found->out == out && found->dst == dst);
  };
  // What a digest covers must be final: ranges and patches keep out of each other's way.
  std::vector<Extent> claimed;
  for (const Digest& digest : digests_) {
    bool good = digest.out < outputs_.size() && digest.begin <= digest.end &&
                digest.end <= outputs_[digest.out].size &&
                item_starts_at(digest.out, digest.begin) && item_starts_at(digest.out, digest.end);
    for (const uint64_t patch : digest.patches) {
      const uint64_t end = patch + sizeof(uint32_t);
      good = good && end > patch && end <= outputs_[digest.out].size;
      claimed.push_back({digest.out, patch, sizeof(uint32_t)});
    }
    if (!good) throw InconsistentError({.offset = digest.begin}, "malformed digest");
    if (digest.begin < digest.end) {
      claimed.push_back({digest.out, digest.begin, digest.end - digest.begin});
    }
  }
  std::sort(claimed.begin(), claimed.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  for (size_t i = 1; i < claimed.size(); ++i) {
    if (claimed[i].file == claimed[i - 1].file && claimed[i].offset < claimed[i - 1].end()) {
      throw InconsistentError({.file = outputs_[claimed[i].file].path, .offset = claimed[i].offset},
                              "digests overlap");
    }
  }
}

OutputId PlanBuilder::add_output(std::string path, uint64_t size) {
  plan_.outputs_.push_back({std::move(path), size});
  return static_cast<OutputId>(plan_.outputs_.size() - 1);
}

namespace {

Op op_of(const SourceRun& run) {
  switch (run.combine) {
    case Combine::mean:
      return Op::mean;
    case Combine::same:
      return Op::same;
    case Combine::interleave:
      return Op::interleave;
    case Combine::zeros:
      return Op::zeros;
    case Combine::none:
      break;
  }
  return run.stored == run.result ? Op::copy : Op::cast;
}

}  // namespace

// True if what `run` and its operands read follows what `item`, the newest, and its operands do.
bool PlanBuilder::continues(const CopyItem& item, const SourceRun& run) const {
  if (item.op != op_of(run) || item.from != run.stored || item.rows != 1 || run.rows != 1) {
    return false;
  }
  if (item.op == Op::zeros) return true;
  if (item.in != run.file || item.src + item.row_bytes != run.offset ||
      item.operand_count != run.more.size()) {
    return false;
  }
  if (run.combine == Combine::same && plan_.texts_[item.what] != *run.what) return false;
  const std::span<const Operand> operands = plan_.operands_of(item);
  return std::equal(operands.begin(), operands.end(), run.more.begin(),
                    [&](const Operand& a, const Operand& b) {
                      return a.in == b.in && a.src + item.row_bytes == b.src;
                    });
}

void PlanBuilder::put(OutputId out, uint64_t dst, const TensorSource& source) {
  std::optional<CopyItem> pending;
  const auto flush = [&] {
    if (pending) plan_.items_.push_back(*pending);
  };
  source.lower([&](const SourceRun& run) {
    if (pending && continues(*pending, run)) {
      pending->row_bytes += run.row_bytes;
      dst += run.result_bytes();
      return;
    }
    flush();
    pending = CopyItem{.op = op_of(run),
                       .from = run.stored,
                       .to = run.result,
                       .out = out,
                       .in = run.file,
                       .dst = dst,
                       .src = run.offset,
                       .row_bytes = run.row_bytes,
                       .rows = run.rows,
                       .src_stride = run.stride};
    if (!run.more.empty()) {
      if (run.more.size() > std::numeric_limits<uint32_t>::max() - plan_.operands_.size()) {
        throw UnsupportedError({}, "a plan with more than 2^32 operands");
      }
      pending->operand_begin = static_cast<uint32_t>(plan_.operands_.size());
      pending->operand_count = static_cast<uint32_t>(run.more.size());
      plan_.operands_.insert(plan_.operands_.end(), run.more.begin(), run.more.end());
    }
    if (run.combine == Combine::same) {
      const auto [text, is_new] =
          texts_.try_emplace(*run.what, static_cast<uint32_t>(plan_.texts_.size()));
      if (is_new) plan_.texts_.push_back(*run.what);
      pending->what = text->second;
    }
    dst += run.result_bytes();
  });
  flush();
}

void PlanBuilder::put_literal(OutputId out, uint64_t dst, std::string_view bytes) {
  if (bytes.empty()) return;
  plan_.items_.push_back({.op = Op::literal,
                          .out = out,
                          .dst = dst,
                          .src = plan_.literals_.size(),
                          .row_bytes = bytes.size()});
  plan_.literals_ += bytes;
}

void PlanBuilder::add_digest(Digest digest) {
  plan_.digests_.push_back(std::move(digest));
}

CopyPlan PlanBuilder::finish() {
  const auto before = [](const CopyItem& a, const CopyItem& b) {
    return a.out != b.out ? a.out < b.out : a.dst < b.dst;
  };
  if (!std::is_sorted(plan_.items_.begin(), plan_.items_.end(), before)) {
    std::stable_sort(plan_.items_.begin(), plan_.items_.end(), before);
  }
  texts_.clear();
  return std::exchange(plan_, {});
}

}  // namespace dsckpt
