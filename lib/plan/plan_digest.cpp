#include "plan/plan_digest.h"

#include <array>
#include <bit>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace dsckpt {
namespace {

// Hashes numbers and texts, one after the other.
class Digester {
 public:
  void add(uint64_t number) {
    std::array<std::byte, sizeof number> bytes;
    store_le(bytes.data(), number);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    if (buffer_.size() >= kAtOnce) flush();
  }
  void add(const std::vector<CopyItem>& items) {
    add(items.size());
    for (const CopyItem& item : items) {
      add(static_cast<uint64_t>(item.op));
      add(static_cast<uint64_t>(item.from));
      add(static_cast<uint64_t>(item.to));
      add(item.out);
      add(item.dst);
      add(item.rows);
      add(item.source);
      add(item.operand_begin);
      add(item.operand_count);
      add(item.what);
    }
  }
  void add(const ItemRange& range) {
    add(range.begin);
    add(range.end);
  }
  void add(const PlannedUpdate::Factor& factor) {
    add(factor.items);
    add(factor.batch_stride);
    add(factor.row_stride);
    add(factor.column_stride);
  }
  void add(std::string_view text) {
    add(text.size());
    flush();
    sha256_.update(std::as_bytes(std::span(text)));
  }
  void add(const Rows& rows) {
    add(rows.file);
    add(rows.offset);
    add(rows.row_bytes);
    add(static_cast<uint64_t>(rows.stride));
  }
  Sha256Digest digest() {
    flush();
    return sha256_.digest();
  }

 private:
  static constexpr size_t kAtOnce = 64 << 10;
  void flush() {
    sha256_.update(buffer_);
    buffer_.clear();
  }

  Sha256 sha256_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Sha256Digest digest_of(const CopyPlan& plan) {
  Digester digester;
  digester.add(plan.outputs().size());
  for (const PlannedFile& file : plan.outputs()) {
    digester.add(file.path);
    digester.add(file.size);
  }
  digester.add(plan.items());
  digester.add(plan.digests().size());
  for (const Digest& digest : plan.digests()) {
    digester.add(digest.out);
    digester.add(digest.begin);
    digester.add(digest.end);
    digester.add(digest.patches.size());
    for (const uint64_t patch : digest.patches) digester.add(patch);
  }
  digester.add(plan.literals());
  digester.add(plan.operands().size());
  for (const Rows& rows : plan.operands()) digester.add(rows);
  digester.add(plan.texts().size());
  for (const std::string& text : plan.texts()) digester.add(text);
  digester.add(plan.terms().size());
  for (const std::vector<PlannedTerm>& terms : plan.terms()) {
    digester.add(terms.size());
    for (const PlannedTerm& term : terms) {
      digester.add(std::bit_cast<uint64_t>(term.weight));
      digester.add(std::bit_cast<uint64_t>(term.share));
      digester.add(static_cast<uint64_t>(term.stored));
      digester.add(static_cast<uint64_t>(term.op));
      digester.add(term.operands);
      digester.add(term.what);
    }
  }
  digester.add(plan.updates().size());
  for (const PlannedUpdate& update : plan.updates()) {
    for (const uint64_t number : {update.batches, update.rows, update.columns, update.rank}) {
      digester.add(number);
    }
    digester.add(update.left);
    digester.add(update.right);
    digester.add(std::bit_cast<uint64_t>(update.scale));
    digester.add(update.base);
    digester.add(update.magnitude);
    digester.add(uint64_t{update.norms_of_columns});
  }
  digester.add(plan.update_items());
  return digester.digest();
}

}  // namespace dsckpt
