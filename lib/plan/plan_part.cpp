#include "plan/plan_part.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

// Resharding has hundreds of megabytes of them, which are not to be in memory twice.
constexpr size_t kLiteralsAtOnce = 1 << 20;

}  // namespace

// The access of both functions below to the private parts of a plan.
class PlanParts {
 public:
  static PlanPart part_of(const CopyPlan& plan, size_t first, size_t last,
                          std::span<const uint64_t> digests);
  static CopyPlan read(VarintReader& reader);

 private:
  static std::vector<CopyItem> read_items(VarintReader& reader, CopyPlan& plan);
  static CopyItem read_item(VarintReader& reader, const CopyItem& before, CopyPlan& plan);
  static void check_item(const CopyItem& item, const CopyPlan& plan);
  static void check_update(const PlannedUpdate& update, const CopyPlan& plan);
};

PlanPart PlanParts::part_of(const CopyPlan& plan, size_t first, size_t last,
                            std::span<const uint64_t> digests) {
  PlanPart part;
  Renumbering<FileId> file_of(part.files);
  std::vector<uint32_t> texts;
  Renumbering<uint32_t> text_of(texts);
  std::vector<uint32_t> terms;
  Renumbering<uint32_t> terms_of(terms);
  std::vector<uint32_t> updates;
  Renumbering<uint32_t> update_of(updates);
  const auto renumber = [&](CopyItem& item) {
    if (item.op == Op::copy || item.op == Op::cast) item.source.file = file_of(item.source.file);
    if (item.op == Op::literal) {
      const Extent extent = item.source.span(item.rows);
      item.source.offset = part.plan.literals_.size();
      part.plan.literals_.append(plan.literals_, extent.offset, extent.size);
    }
    if (item.op == Op::same) item.what = text_of(item.what);
    if (item.op == Op::weighted) item.what = terms_of(item.what);
    if (item.op == Op::low_rank) item.what = update_of(item.what);
    const uint32_t begin = item.operand_begin;
    item.operand_begin = 0;
    if (item.operand_count > 0) {
      item.operand_begin = static_cast<uint32_t>(part.plan.operands_.size());
      for (uint32_t k = begin; k < begin + item.operand_count; ++k) {
        Rows rows = plan.operands_[k];
        rows.file = file_of(rows.file);
        part.plan.operands_.push_back(rows);
        part.operands.push_back(k);
      }
    }
  };
  part.plan.items_.reserve(last - first);
  for (size_t i = first; i < last; ++i) {
    CopyItem item = plan.items_[i];
    if (part.outputs.empty() || part.outputs.back() != item.out) {
      part.outputs.push_back(item.out);
      part.plan.outputs_.push_back(plan.outputs_[item.out]);
    }
    item.out = static_cast<OutputId>(part.outputs.size() - 1);
    renumber(item);
    part.plan.items_.push_back(item);
  }
  for (const uint32_t which : updates) {
    PlannedUpdate update = plan.updates_[which];
    for (ItemRange* range :
         {&update.base, &update.left.items, &update.right.items, &update.magnitude}) {
      const auto begin = static_cast<uint32_t>(part.plan.update_items_.size());
      for (CopyItem item : plan.update_items(*range)) {
        renumber(item);
        part.plan.update_items_.push_back(item);
      }
      *range = {begin, static_cast<uint32_t>(part.plan.update_items_.size())};
    }
    part.plan.updates_.push_back(update);
  }
  for (const uint32_t which : terms) {
    part.plan.terms_.push_back(plan.terms_[which]);
    for (PlannedTerm& term : part.plan.terms_.back()) {
      if (term.op == Op::same) term.what = text_of(term.what);
    }
  }
  for (const uint32_t text : texts) part.plan.texts_.push_back(plan.texts_[text]);
  for (const uint64_t which : digests) {
    Digest digest = plan.digests_[which];
    // The part's outputs are sorted.
    const auto out = std::lower_bound(part.outputs.begin(), part.outputs.end(), digest.out);
    digest.out = static_cast<OutputId>(out - part.outputs.begin());
    part.plan.digests_.push_back(std::move(digest));
    part.digests.push_back(which);
  }
  return part;
}

PlanPart part_of(const CopyPlan& plan, size_t first, size_t last,
                 std::span<const uint64_t> digests) {
  return PlanParts::part_of(plan, first, last, digests);
}

namespace {

void write_rows(VarintWriter& writer, const Rows& rows, const Rows& before) {
  writer.difference(before.file, rows.file);
  writer.difference(before.offset + before.row_bytes, rows.offset);
  writer.difference(before.row_bytes, rows.row_bytes);
  writer.difference(rows.row_bytes, static_cast<uint64_t>(rows.stride));
}

Rows read_rows(VarintReader& reader, const Rows& before) {
  Rows rows;
  rows.file = static_cast<FileId>(reader.difference(before.file));
  rows.offset = reader.difference(before.offset + before.row_bytes);
  rows.row_bytes = reader.difference(before.row_bytes);
  rows.stride = static_cast<int64_t>(reader.difference(rows.row_bytes));
  return rows;
}

// True if `item` differs from the one before in nothing but its place and its sources. Most do.
bool continues(const CopyItem& item, const CopyItem& before) {
  const auto kind = [](const CopyItem& each) {
    return std::tie(each.op, each.from, each.to, each.out, each.rows, each.what,
                    each.operand_count);
  };
  return kind(item) == kind(before) && item.dst == before.dst_end();
}

void write_items(VarintWriter& writer, const CopyPlan& plan, const std::vector<CopyItem>& items,
                 Rows& operand, const std::function<void()>& written) {
  constexpr size_t kAtOnce = 4096;
  writer.number(items.size());
  CopyItem before;
  size_t count = 0;
  for (const CopyItem& item : items) {
    const bool goes_on = continues(item, before);
    writer.number(uint64_t{goes_on});
    if (!goes_on) {
      writer.number(static_cast<uint64_t>(item.op));
      writer.number(static_cast<uint64_t>(item.from));
      writer.number(static_cast<uint64_t>(item.to));
      writer.number(item.out - before.out);
      writer.difference(item.out == before.out ? before.dst_end() : 0, item.dst);
      writer.number(item.rows);
      writer.number(item.what);
      writer.number(item.operand_count);
    }
    write_rows(writer, item.source, before.source);
    for (uint32_t k = 0; k < item.operand_count; ++k) {
      const Rows& rows = plan.operands()[item.operand_begin + k];
      write_rows(writer, rows, operand);
      operand = rows;
    }
    before = item;
    if (++count % kAtOnce == 0 && written) written();
  }
}

}  // namespace

void write_plan(VarintWriter& writer, const CopyPlan& plan, const std::function<void()>& written) {
  writer(plan.outputs());
  const std::string_view literals = plan.literals();
  writer.number((literals.size() + kLiteralsAtOnce - 1) / kLiteralsAtOnce);
  for (size_t at = 0; at < literals.size(); at += kLiteralsAtOnce) {
    writer.text(literals.substr(at, kLiteralsAtOnce));
    if (written) written();
  }
  writer(plan.texts(), plan.terms(), plan.digests());
  Rows operand;
  write_items(writer, plan, plan.items(), operand, written);
  write_items(writer, plan, plan.update_items(), operand, written);
  writer(plan.updates());
}

CopyItem PlanParts::read_item(VarintReader& reader, const CopyItem& before, CopyPlan& plan) {
  CopyItem item = before;
  item.operand_begin = 0;
  item.dst = before.dst_end();
  if (reader.number() == 0) {
    item.op = reader.choice(kLastOp);
    item.from = reader.choice(kLastDType);
    item.to = reader.choice(kLastDType);
    item.out = before.out + static_cast<OutputId>(reader.number());
    item.dst = reader.difference(item.out == before.out ? before.dst_end() : 0);
    item.rows = reader.number();
    item.what = static_cast<uint32_t>(reader.number());
    item.operand_count = static_cast<uint32_t>(reader.number());
  }
  item.source = read_rows(reader, before.source);
  if (item.operand_count > 0) item.operand_begin = static_cast<uint32_t>(plan.operands_.size());
  for (uint32_t k = 0; k < item.operand_count; ++k) {
    const Rows last = plan.operands_.empty() ? Rows{} : plan.operands_.back();
    plan.operands_.push_back(read_rows(reader, last));
  }
  return item;
}

// Checks that the item refers only to things in the plan.
void PlanParts::check_item(const CopyItem& item, const CopyPlan& plan) {
  const auto is_named = [&](const auto& named, uint64_t which) { return which < named.size(); };
  bool right = is_named(plan.outputs_, item.out);
  if (item.op == Op::literal) {
    const uint64_t size = plan.literals_.size();
    const Rows& rows = item.source;
    right = right && item.rows == 1 && rows.offset <= size && rows.row_bytes <= size - rows.offset;
  } else if (item.op == Op::same) {
    right = right && is_named(plan.texts_, item.what);
  } else if (item.op == Op::weighted) {
    right = right && is_named(plan.terms_, item.what);
    uint64_t operands = 0;
    for (size_t i = 0; right && i < plan.terms_[item.what].size(); ++i) {
      const PlannedTerm& term = plan.terms_[item.what][i];
      operands += term.operands;
      right = term.op != Op::same || is_named(plan.texts_, term.what);
    }
    right = right && operands == item.operand_count;
  } else if (item.op == Op::low_rank) {
    right = right && is_named(plan.updates_, item.what);
    const uint64_t elements = item.source.row_bytes / size_of(DType::float64);
    right = right && item.rows == 1 && item.from == DType::float64 &&
            checked_add(item.source.offset, elements) <= plan.updates_[item.what].elements();
  }
  if (!right) throw CorruptError({}, "a plan with an item that refers to something outside of it");
}

CopyPlan PlanParts::read(VarintReader& reader) {
  CopyPlan plan;
  reader(plan.outputs_);
  for (size_t pieces = reader.count(); pieces > 0; --pieces) plan.literals_ += reader.text();
  reader(plan.texts_, plan.terms_, plan.digests_);
  for (const Digest& digest : plan.digests_) {
    if (digest.out >= plan.outputs_.size()) throw CorruptError({}, "a digest of no output");
  }
  plan.items_ = read_items(reader, plan);
  plan.update_items_ = read_items(reader, plan);
  reader(plan.updates_);
  for (const PlannedUpdate& update : plan.updates_) check_update(update, plan);
  for (const CopyItem& item : plan.items_) check_item(item, plan);
  for (const CopyItem& item : plan.update_items_) check_item(item, plan);
  return plan;
}

std::vector<CopyItem> PlanParts::read_items(VarintReader& reader, CopyPlan& plan) {
  std::vector<CopyItem> items;
  const size_t count = reader.count();
  items.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    items.push_back(read_item(reader, items.empty() ? CopyItem{} : items.back(), plan));
  }
  return items;
}

// Checks that the items fill each tensor of the update, and that its sizes agree.
void PlanParts::check_update(const PlannedUpdate& update, const CopyPlan& plan) {
  const auto numel = [&](const ItemRange& range) {
    if (range.begin > range.end || range.end > plan.update_items_.size()) {
      throw CorruptError({}, "an update of items that are not there");
    }
    uint64_t filled = 0;
    for (const CopyItem& item : plan.update_items(range)) {
      const bool fits = item.to == DType::float32 && item.op != Op::low_rank &&
                        item.op != Op::weighted && item.op != Op::literal && item.dst == filled;
      if (!fits) throw CorruptError({}, "an update of malformed items");
      filled = checked_add(filled, checked_mul(item.rows, item.dst_row_bytes()));
    }
    return filled / sizeof(float);
  };
  const auto fits = [&](const PlannedUpdate::Factor& factor, uint64_t rows, uint64_t columns) {
    uint64_t last = checked_mul(update.batches - 1, factor.batch_stride);
    last = checked_add(last, checked_mul(rows - 1, factor.row_stride));
    last = checked_add(last, checked_mul(columns - 1, factor.column_stride));
    return last < numel(factor.items);
  };
  const bool right =
      update.batches > 0 && update.rows > 0 && update.columns > 0 && update.rank > 0 &&
      numel(update.base) == checked_mul(update.batches, checked_mul(update.rows, update.columns)) &&
      fits(update.right, update.rank, update.columns) &&
      (update.left.items.empty() || fits(update.left, update.rows, update.rank)) &&
      (update.magnitude.empty() ||
       numel(update.magnitude) == (update.norms_of_columns ? update.columns : update.rows));
  if (!right) throw CorruptError({}, "an update whose tensors do not fit");
}

CopyPlan read_plan(VarintReader& reader) {
  CopyPlan plan = PlanParts::read(reader);
  try {
    check_paths(plan.outputs());
  } catch (const InconsistentError& error) {
    throw CorruptError(error.where(), error.message());
  }
  return plan;
}

}  // namespace dsckpt
