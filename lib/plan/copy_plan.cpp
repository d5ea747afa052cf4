#include "plan/copy_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "dsckpt/error.h"

namespace dsckpt {

static_assert(sizeof(CopyItem) <= 72);

uint64_t CopyPlan::bytes_written() const {
  uint64_t sum = 0;
  for (const PlannedFile& file : outputs_) sum += file.size;
  return sum;
}

namespace {

uint64_t bytes_read_of(const CopyPlan& plan, const CopyItem& item) {
  return item.rows * (item.source.row_bytes / size_of(item.from)) *
         plan.bytes_read_an_element(item);
}

}  // namespace

uint64_t CopyPlan::bytes_read() const {
  uint64_t sum = 0;
  for (const CopyItem& item : items_) sum += bytes_read_of(*this, item);
  const auto add = [&](const ItemRange& range) {
    for (const CopyItem& item : update_items(range)) sum += bytes_read_of(*this, item);
  };
  for (const PlannedUpdate& update : updates_) {
    add(update.left.items);
    add(update.right.items);
    add(update.magnitude);
  }
  return sum;
}

uint64_t CopyPlan::bytes_read_an_element(const CopyItem& item) const {
  switch (item.op) {
    case Op::literal:
    case Op::zeros:
      return 0;
    case Op::mean:
    case Op::same:
      return item.operand_count * size_of(item.from);
    case Op::weighted: {
      uint64_t sum = 0;
      for (const PlannedTerm& term : terms_[item.what]) sum += term.operands * size_of(term.stored);
      return sum;
    }
    case Op::low_rank:
      return bytes_read_an_element(update_items_[updates_[item.what].base.begin]);
    default:
      return size_of(item.from);
  }
}

void check_paths(const std::vector<PlannedFile>& outputs) {
  KeyedSet<std::string_view> seen;
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
      // what() of the error ends at a NUL, so the path is cut there.
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

namespace {

// Calls `take` with each operand of a weighted item and the type of its elements.
template <typename F>
void for_each_operand(std::span<const Rows> operands, const std::vector<PlannedTerm>& terms,
                      F&& take) {
  size_t i = 0;
  for (const PlannedTerm& term : terms) {
    for (uint32_t k = 0; k < term.operands; ++k) take(operands[i++], term.stored);
  }
}

bool are_well_formed(const std::vector<PlannedTerm>& terms, size_t texts, size_t operands) {
  size_t sum = 0;
  for (const PlannedTerm& term : terms) {
    const bool good = (term.op == Op::copy && term.operands == 1) ||
                      (term.op == Op::mean && term.stored == DType::float32 && term.operands > 0) ||
                      (term.op == Op::same && term.operands > 1 && term.what < texts);
    const bool widens = term.stored == DType::float32 || term.stored == DType::bfloat16 ||
                        term.stored == DType::float16;
    if (!good || !widens || !(term.weight > 0) || !(term.share >= 0)) return false;
    sum += term.operands;
  }
  return !terms.empty() && sum == operands;
}

// Checks that `rows` lie inside `name`, which has `size` bytes, and consist of whole elements.
void check_rows(const std::string& name, uint64_t size, const Rows& rows, uint64_t count,
                DType dtype) {
  if (count == 0 || rows.row_bytes == 0 || rows.row_bytes % size_of(dtype) != 0 ||
      (count > 1 && rows.stride < 0)) {
    throw InconsistentError({.file = name, .offset = rows.offset}, "malformed item");
  }
  const uint64_t steps =
      count == 1 ? 0 : checked_mul(count - 1, static_cast<uint64_t>(rows.stride));
  const uint64_t end = checked_add(checked_add(rows.offset, steps), rows.row_bytes);
  if (end > size) {
    throw InconsistentError(
        {.file = name, .offset = rows.offset},
        "reads up to byte " + std::to_string(end) + " of " + std::to_string(size));
  }
}

bool is_rounded_to(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

// Checks everything about an item of its kind except the rows that it reads.
bool is_well_formed(const CopyPlan& plan, const CopyItem& item) {
  const bool within = item.operand_begin <= plan.operands().size() &&
                      item.operand_count <= plan.operands().size() - item.operand_begin;
  const auto operands_are_rows = [&] {
    const std::span<const Rows> operands = plan.sources_of(item);
    return std::all_of(operands.begin(), operands.end(), [&](const Rows& operand) {
      return operand.row_bytes == item.source.row_bytes;
    });
  };
  const auto operands_fill_row = [&] {
    uint64_t sum = 0;
    for (const Rows& column : plan.sources_of(item)) sum = checked_add(sum, column.row_bytes);
    return sum == item.source.row_bytes;
  };
  const auto operands_are_terms = [&] {
    if (!within || item.what >= plan.terms().size()) return false;
    const std::vector<PlannedTerm>& terms = plan.terms()[item.what];
    if (!are_well_formed(terms, plan.texts().size(), item.operand_count)) return false;
    const uint64_t elements = item.source.row_bytes / size_of(DType::float64);
    bool good = item.source.row_bytes % size_of(DType::float64) == 0;
    for_each_operand(plan.sources_of(item), terms, [&](const Rows& operand, DType stored) {
      good = good && operand.row_bytes == elements * size_of(stored);
    });
    return good;
  };
  switch (item.op) {
    case Op::copy:
    case Op::literal:
      return item.from == item.to && item.operand_count == 0;
    case Op::cast:
      return item.operand_count == 0;
    case Op::zeros:
      return item.from == item.to && item.operand_count == 0 && item.rows == 1;
    case Op::mean:
      return within && item.operand_count >= 1 && item.rows == 1 && item.from == DType::float32 &&
             operands_are_rows();
    case Op::same:
      return within && item.operand_count >= 2 && item.rows == 1 &&
             item.what < plan.texts().size() && operands_are_rows();
    case Op::interleave:
      return within && item.operand_count >= 2 && operands_fill_row();
    case Op::weighted:
      return item.rows == 1 && item.from == DType::float64 && is_rounded_to(item.to) &&
             operands_are_terms();
    case Op::low_rank: {
      const uint64_t elements = item.source.row_bytes / size_of(DType::float64);
      return item.rows == 1 && item.from == DType::float64 && is_rounded_to(item.to) &&
             item.operand_count == 0 && item.what < plan.updates().size() &&
             checked_add(item.source.offset, elements) <= plan.updates()[item.what].elements();
    }
  }
  return false;
}

void check_item(const CopyPlan& plan, const CopyItem& item, const std::string& output,
                const std::vector<PlannedInput>& inputs) {
  if (!is_well_formed(plan, item)) {
    throw InconsistentError({.file = output, .offset = item.dst}, "malformed item");
  }
  if (item.op == Op::literal) {
    check_rows(output, plan.literals().size(), item.source, item.rows, item.from);
  } else if (item.op == Op::zeros) {
    check_rows(output, item.source.row_bytes, {.row_bytes = item.source.row_bytes}, 1, item.from);
  }
  const auto check_read = [&](const Rows& rows, DType stored) {
    if (rows.file >= inputs.size()) {
      throw InconsistentError({.file = output, .offset = item.dst}, "reads an unknown file");
    }
    const PlannedInput& input = inputs[rows.file];
    check_rows(input.display, input.size, rows, item.rows, stored);
  };
  if (item.op == Op::weighted) {
    for_each_operand(plan.sources_of(item), plan.terms()[item.what], check_read);
  } else {
    for (const Rows& rows : plan.sources_of(item)) check_read(rows, item.from);
  }
}

}  // namespace

namespace {

// Checks that the items of an update's tensor tile it and read inside their files. Returns the
// number of its elements.
uint64_t check_update_items(const CopyPlan& plan, const ItemRange& range,
                            const std::vector<PlannedInput>& inputs) {
  uint64_t filled = 0;
  for (const CopyItem& item : plan.update_items(range)) {
    const bool is_read =
        item.op != Op::low_rank && item.op != Op::weighted && item.op != Op::literal;
    if (item.to != DType::float32 || !is_read || item.dst != filled) {
      throw InconsistentError({.offset = item.dst}, "malformed item of an update");
    }
    check_item(plan, item, "", inputs);
    filled = checked_add(filled, item.dst_size());
  }
  return filled / sizeof(float);
}

void check_update(const CopyPlan& plan, const PlannedUpdate& update,
                  const std::vector<PlannedInput>& inputs) {
  const auto check_factor = [&](const PlannedUpdate::Factor& factor, uint64_t rows,
                                uint64_t columns) {
    uint64_t last = checked_mul(update.batches - 1, factor.batch_stride);
    last = checked_add(last, checked_mul(rows - 1, factor.row_stride));
    last = checked_add(last, checked_mul(columns - 1, factor.column_stride));
    return last < check_update_items(plan, factor.items, inputs);
  };
  const uint64_t norms = update.norms_of_columns ? update.columns : update.rows;
  const bool good =
      update.batches > 0 && update.rows > 0 && update.columns > 0 && update.rank > 0 &&
      check_update_items(plan, update.base, inputs) == update.elements() &&
      check_factor(update.right, update.rank, update.columns) &&
      (update.left.items.empty() || check_factor(update.left, update.rows, update.rank)) &&
      (update.magnitude.empty() ||
       (update.batches == 1 && check_update_items(plan, update.magnitude, inputs) == norms));
  if (!good) throw InconsistentError({}, "malformed update");
}

}  // namespace

void CopyPlan::validate(const std::vector<PlannedInput>& inputs) const {
  check_paths(outputs_);
  for (const PlannedUpdate& update : updates_) check_update(*this, update, inputs);

  auto item = items_.begin();
  for (OutputId out = 0; out < outputs_.size(); ++out) {
    const PlannedFile& file = outputs_[out];
    uint64_t written = 0;
    for (; item != items_.end() && item->out == out; ++item) {
      check_item(*this, *item, file.path, inputs);
      const uint64_t dst_row_bytes =
          checked_mul(item->source.row_bytes / size_of(item->from), size_of(item->to));
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
  // The bytes under a digest must be final, so ranges and patches must not overlap.
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
    case Combine::weighted:
      return Op::weighted;
    case Combine::low_rank:
      return Op::low_rank;
    case Combine::none:
      break;
  }
  return run.stored == run.result ? Op::copy : Op::cast;
}

}  // namespace

namespace {

Op op_of(const WeightedTerm& term) {
  if (term.combine == Combine::none) return Op::copy;
  return term.combine == Combine::mean ? Op::mean : Op::same;
}

}  // namespace

// Returns whether all reads of `run` continue the reads of `item`, the newest item.
bool PlanBuilder::continues(const CopyItem& item, const SourceRun& run) const {
  if (item.op != op_of(run) || item.from != run.stored || item.rows != 1 || run.rows != 1) {
    return false;
  }
  if (run.combine == Combine::same && plan_.texts_[item.what] != *run.what) return false;
  if (run.combine == Combine::weighted && !has_terms(item, run)) return false;
  if (run.combine == Combine::low_rank) {
    const auto known = updates_.find(run.update);
    return known != updates_.end() && known->second == item.what &&
           item.source.offset + item.source.row_bytes / size_of(DType::float64) ==
               run.source.offset;
  }
  const std::span<const Rows> ends = plan_.sources_of(item);
  const std::span<const Rows> begins = run.sources();
  return std::equal(ends.begin(), ends.end(), begins.begin(), begins.end(),
                    [](const Rows& end, const Rows& begin) { return end.is_continued_by(begin); });
}

bool PlanBuilder::has_terms(const CopyItem& item, const SourceRun& run) const {
  const std::vector<PlannedTerm>& terms = plan_.terms_[item.what];
  return std::equal(terms.begin(), terms.end(), run.terms.begin(), run.terms.end(),
                    [&](const PlannedTerm& a, const WeightedTerm& b) {
                      return a.weight == b.weight && a.share == b.share && a.stored == b.stored &&
                             a.op == op_of(b) && a.operands == b.operands &&
                             (a.op != Op::same || plan_.texts_[a.what] == *b.what);
                    });
}

// Lengthens the only row of `item`, the newest item.
void PlanBuilder::extend(CopyItem& item, uint64_t bytes) {
  item.source.row_bytes += bytes;
  if (item.op == Op::weighted) {
    size_t i = item.operand_begin;
    for (const PlannedTerm& term : plan_.terms_[item.what]) {
      for (uint32_t k = 0; k < term.operands; ++k) {
        plan_.operands_[i++].row_bytes += bytes / size_of(item.from) * size_of(term.stored);
      }
    }
    return;
  }
  for (uint32_t i = 0; i < item.operand_count; ++i) {
    plan_.operands_[item.operand_begin + i].row_bytes += bytes;
  }
}

void PlanBuilder::add_operands(CopyItem& item, const std::vector<Rows>& operands) {
  if (operands.size() > std::numeric_limits<uint32_t>::max() - plan_.operands_.size()) {
    throw UnsupportedError({}, "a plan with more than 2^32 operands");
  }
  item.operand_begin = static_cast<uint32_t>(plan_.operands_.size());
  item.operand_count = static_cast<uint32_t>(operands.size());
  plan_.operands_.insert(plan_.operands_.end(), operands.begin(), operands.end());
}

uint32_t PlanBuilder::index_of(const std::string& text) {
  const auto [known, is_new] = texts_.try_emplace(text, static_cast<uint32_t>(plan_.texts_.size()));
  if (is_new) plan_.texts_.push_back(text);
  return known->second;
}

// Only the newest terms are compared, since neighbours mostly have the same ones.
uint32_t PlanBuilder::index_of_terms(const SourceRun& run) {
  std::vector<PlannedTerm> terms;
  for (const WeightedTerm& term : run.terms) {
    terms.push_back({.weight = term.weight,
                     .share = term.share,
                     .stored = term.stored,
                     .op = op_of(term),
                     .operands = term.operands,
                     .what = term.combine == Combine::same ? index_of(*term.what) : 0});
  }
  if (plan_.terms_.empty() || plan_.terms_.back() != terms) {
    plan_.terms_.push_back(std::move(terms));
  }
  return static_cast<uint32_t>(plan_.terms_.size() - 1);
}

ItemRange PlanBuilder::add_update_items(const TensorSource& source) {
  const auto begin = static_cast<uint32_t>(plan_.update_items_.size());
  append(plan_.update_items_, 0, 0, source.to(DType::float32));
  if (plan_.update_items_.size() > std::numeric_limits<uint32_t>::max()) {
    throw UnsupportedError({}, "a plan with more than 2^32 items of updates");
  }
  return {begin, static_cast<uint32_t>(plan_.update_items_.size())};
}

uint32_t PlanBuilder::index_of_update(const std::shared_ptr<const LowRankUpdate>& update) {
  const auto [known, is_new] =
      updates_.emplace(update, static_cast<uint32_t>(plan_.updates_.size()));
  if (!is_new) return known->second;
  const auto factor_of = [&](const FactorView& view) {
    return PlannedUpdate::Factor{add_update_items(view.values), view.batch_stride, view.row_stride,
                                 view.column_stride};
  };
  PlannedUpdate planned{.batches = update->batches,
                        .rows = update->rows,
                        .columns = update->columns,
                        .rank = update->rank,
                        .left = {},
                        .right = factor_of(update->right),
                        .scale = update->scale,
                        .base = add_update_items(update->base),
                        .magnitude = {},
                        .norms_of_columns = update->norms_of_columns};
  if (update->left) planned.left = factor_of(*update->left);
  if (update->magnitude) planned.magnitude = add_update_items(*update->magnitude);
  plan_.updates_.push_back(planned);
  return known->second;
}

void PlanBuilder::put(OutputId out, uint64_t dst, const TensorSource& source) {
  append(plan_.items_, out, dst, source);
}

void PlanBuilder::append(std::vector<CopyItem>& items, OutputId out, uint64_t dst,
                         const TensorSource& source) {
  std::optional<CopyItem> pending;
  const auto flush = [&] {
    if (pending) items.push_back(*pending);
  };
  source.lower([&](const SourceRun& run) {
    if (pending && continues(*pending, run)) {
      extend(*pending, run.source.row_bytes);
    } else {
      flush();
      pieces_.add(run);
      pending = CopyItem{.op = op_of(run),
                         .from = run.stored,
                         .to = run.result,
                         .out = out,
                         .dst = dst,
                         .rows = run.rows,
                         .source = run.source};
      if (!run.operands.empty()) add_operands(*pending, run.operands);
      if (run.combine == Combine::same) pending->what = index_of(*run.what);
      if (run.combine == Combine::weighted) pending->what = index_of_terms(run);
      if (run.combine == Combine::low_rank) pending->what = index_of_update(run.update);
    }
    dst += run.result_bytes();
  });
  flush();
}

void PlanBuilder::put_literal(OutputId out, uint64_t dst, std::string_view bytes) {
  put_kept_literal(out, dst, keep_literal(bytes));
}

Extent PlanBuilder::keep_literal(std::string_view bytes) {
  const Extent kept{.offset = plan_.literals_.size(), .size = bytes.size()};
  plan_.literals_ += bytes;
  return kept;
}

void PlanBuilder::put_kept_literal(OutputId out, uint64_t dst, const Extent& kept) {
  if (kept.size == 0) return;
  plan_.items_.push_back({.op = Op::literal,
                          .out = out,
                          .dst = dst,
                          .source = {.offset = kept.offset, .row_bytes = kept.size}});
}

void PlanBuilder::expect_literals(uint64_t bytes) {
  std::string& literals = plan_.literals_;
  const size_t wanted = literals.size() + static_cast<size_t>(bytes);
  if (wanted > literals.capacity()) {
    literals.reserve(std::max(wanted, literals.capacity() + literals.capacity() / 2));
  }
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
  updates_.clear();
  pieces_ = PieceCount(kMostPieces);
  return std::exchange(plan_, {});
}

}  // namespace dsckpt
