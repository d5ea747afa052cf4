#include "exec/item_reader.h"

#include <algorithm>
#include <cstring>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

double* doubles(std::span<std::byte> bytes) {
  return reinterpret_cast<double*>(bytes.data());
}

}  // namespace

// Where the bytes of a column go: rows of `pitch` bytes laid end to end, of which the column
// begins `before` bytes into each, are in `bytes` from byte `first` on.
struct ItemReader::Target {
  std::span<std::byte> bytes;
  uint64_t pitch;
  uint64_t before;
  uint64_t first;

  // The place of `size` bytes of row `row` from its column's byte `at` on.
  std::span<std::byte> place(uint64_t row, uint64_t at, uint64_t size) const {
    return bytes.subspan(row * pitch + before + at - first, size);
  }
};

uint64_t ItemReader::read(size_t index, uint64_t skip, std::span<std::byte> target, uint32_t* crc) {
  const CopyItem& item = plan_.items()[index];
  if (!item.reads_input()) {
    if (item.op == Op::literal) {
      std::memcpy(target.data(), plan_.literals().data() + item.source.offset + skip,
                  target.size());
    } else {
      std::fill(target.begin(), target.end(), std::byte{0});
    }
    if (crc != nullptr) *crc = crc32(0, target);
    return 0;
  }
  const uint32_t record = checks_.record_of_item(index);
  const bool checked = record != RecordChecks::kNone;
  const bool converts = item.from != item.to;
  const bool combines = item.op == Op::mean || item.op == Op::same || item.op == Op::weighted;
  const uint64_t in_size = size_of(item.from);
  const uint64_t out_size = size_of(item.to);
  const uint64_t begin = skip / out_size * in_size;
  const uint64_t total = target.size() / out_size * in_size;
  // What is only moved needs no cache, and compressed input is read in whole frames then.
  const bool only_moves = item.op == Op::copy && item.rows == 1 && !checked && crc == nullptr;
  const uint64_t step = converts || combines ? piece_bytes_ / 2
                        : only_moves         ? std::max(total, piece_bytes_)
                                             : piece_bytes_;
  uint32_t source_crc = 0;
  uint32_t target_crc = 0;
  for (uint64_t done = 0; done < total;) {
    const uint64_t size = std::min(step, total - done);
    const auto out = target.subspan(done / in_size * out_size, size / in_size * out_size);
    const std::span<std::byte> value = converts ? unconverted().first(size) : out;
    read_piece(item, begin + done, value);
    if (checked) source_crc = crc32(source_crc, value);
    if (item.op == Op::weighted) {
      round_float64(doubles(value), item.to, out.data(), size / in_size);
    } else if (converts) {
      convert(item.from, item.to, value.data(), out.data(), size / in_size);
    }
    if (crc != nullptr && (converts || !checked)) target_crc = crc32(target_crc, out);
    done += size;
  }
  if (checked) {
    const Rows& source = plan_.sources_of(item).front();
    checks_.report(record, {source.file, source.offset + begin, total}, source_crc);
  }
  if (crc != nullptr) *crc = converts || !checked ? target_crc : source_crc;
  return total / in_size * plan_.bytes_read_an_element(item);
}

// Fills `target` with the bytes from `from` on as they are before they are converted.
void ItemReader::read_piece(const CopyItem& item, uint64_t from, std::span<std::byte> target) {
  switch (item.op) {
    case Op::mean:
      return average(item, from, target);
    case Op::same:
      return compare(item, from, target);
    case Op::weighted:
      return average_weighted(item, from, target);
    case Op::interleave:
      return weave(item, from, target);
    default:
      return gather(item, from, target);
  }
}

// The mean of bytes [from, from + target.size()) of the item's operands. Uses the first half of
// the chunk buffer.
void ItemReader::average(const CopyItem& item, uint64_t from, std::span<std::byte> target) {
  const size_t count = target.size() / sizeof(float);
  const std::span<std::byte> term = scratch().first(target.size());
  std::fill(target.begin(), target.end(), std::byte{0});
  for (const Rows& operand : plan_.sources_of(item)) {
    inputs_[operand.file].read_at(operand.offset + from, term);
    add_float32(target.data(), term.data(), count);
  }
  divide_float32(target.data(), static_cast<float>(item.operand_count), count);
}

// Bytes [from, from + target.size()) of the item's first operand; throws unless those of the others
// are the same. Uses the first half of the chunk buffer.
void ItemReader::compare(const CopyItem& item, uint64_t from, std::span<std::byte> target) {
  const std::span<const Rows> operands = plan_.sources_of(item);
  inputs_[operands[0].file].read_at(operands[0].offset + from, target);
  const std::span<std::byte> other = scratch().first(target.size());
  for (const Rows& operand : operands.subspan(1)) {
    inputs_[operand.file].read_at(operand.offset + from, other);
    check_same(operand, from, target, other, item.what);
  }
}

// The weighted mean of elements [from, from + target.size()), counted in bytes of float64, of the
// item's terms. Reports what belongs to a record. Uses the first half of the chunk buffer: a
// quarter for what a term is, a quarter for what is added to it or compared with it.
void ItemReader::average_weighted(const CopyItem& item, uint64_t from,
                                  std::span<std::byte> target) {
  const size_t count = target.size() / sizeof(double);
  const uint64_t first = from / sizeof(double);
  std::fill(target.begin(), target.end(), std::byte{0});
  size_t index = item.operand_begin;
  double shares = 0;
  for (const PlannedTerm& term : plan_.terms()[item.what]) {
    const uint64_t size = count * size_of(term.stored);
    const std::span<std::byte> value = scratch().first(size);
    const std::span<std::byte> other = scratch().subspan(piece_bytes_ / 4, size);
    const uint64_t skip = first * size_of(term.stored);
    const size_t begin = index;
    if (term.op == Op::mean) std::fill(value.begin(), value.end(), std::byte{0});
    for (; index < begin + term.operands; ++index) {
      const bool whole = term.op != Op::mean && index == begin;
      read_operand(index, skip, whole ? value : other);
      if (whole) continue;
      if (term.op == Op::mean) {
        add_float32(value.data(), other.data(), count);
      } else {
        check_same(plan_.operands()[index], skip, value, other, term.what);
      }
    }
    if (term.op == Op::mean) {
      divide_float32(value.data(), static_cast<float>(term.operands), count);
    }
    add_weighted(doubles(target), term.stored, value.data(), term.weight, count);
    shares += term.share;
  }
  divide_float64(doubles(target), shares, count);
}

// Bytes of the operand `index` from `skip` on.
void ItemReader::read_operand(size_t index, uint64_t skip, std::span<std::byte> bytes) {
  const Rows& operand = plan_.operands()[index];
  inputs_[operand.file].read_at(operand.offset + skip, bytes);
  const uint32_t record = checks_.record_of_operand(index);
  if (record == RecordChecks::kNone) return;
  checks_.report(record, {operand.file, operand.offset + skip, bytes.size()}, crc32(0, bytes));
}

// Throws unless what was read of an operand from `skip` on, `other`, is `value`.
void ItemReader::check_same(const Rows& operand, uint64_t skip, std::span<const std::byte> value,
                            std::span<const std::byte> other, uint32_t what) {
  if (std::memcmp(value.data(), other.data(), value.size()) == 0) return;
  const auto at = std::mismatch(value.begin(), value.end(), other.begin()).first;
  throw InconsistentError(
      {.file = inputs_[operand.file].display(),
       .offset = operand.offset + skip + static_cast<uint64_t>(at - value.begin())},
      plan_.texts()[what] + " are not the same");
}

// Reads source bytes [from, from + target.size()) of the item's rows laid end to end. Uses the
// first half of the chunk buffer.
void ItemReader::gather(const CopyItem& item, uint64_t from, std::span<std::byte> target) {
  const Rows& rows = item.source;
  if (item.rows == 1) return inputs_[rows.file].read_at(rows.offset + from, target);
  gather_rows(rows, from, from + target.size(), {target, rows.row_bytes, 0, from});
}

// The same of an interleave, column by column; reports those that belong to a record.
void ItemReader::weave(const CopyItem& item, uint64_t from, std::span<std::byte> target) {
  uint64_t before = 0;  // in a row, bytes of the columns before this one
  for (uint32_t i = 0; i < item.operand_count; ++i) {
    const size_t index = item.operand_begin + i;
    const Rows& column = plan_.operands()[index];
    // How much of the column lies in front of a byte of the rows laid end to end.
    const auto in_column = [&](uint64_t at) {
      const uint64_t in_row = at % item.source.row_bytes;
      return at / item.source.row_bytes * column.row_bytes +
             std::min(in_row - std::min(in_row, before), column.row_bytes);
    };
    const uint64_t begin = in_column(from);
    const uint64_t end = in_column(from + target.size());
    const Target place{target, item.source.row_bytes, before, from};
    before += column.row_bytes;
    if (begin == end) continue;
    if (!column.contiguous()) {
      gather_rows(column, begin, end, place);
      continue;
    }
    const uint32_t record = checks_.record_of_operand(index);
    const bool checked = record != RecordChecks::kNone;
    const uint32_t crc = read_window(column, begin, end, place, checked);
    if (checked) checks_.report(record, {column.file, column.offset + begin, end - begin}, crc);
  }
}

// Reads bytes [from, to) of the rows laid end to end. Uses the first half of the chunk
// buffer.
void ItemReader::gather_rows(const Rows& rows, uint64_t from, uint64_t to, const Target& target) {
  const InputFile& file = inputs_[rows.file];
  const uint64_t stride = static_cast<uint64_t>(rows.stride);
  const uint64_t row_bytes = rows.row_bytes;
  const bool dense = is_dense(rows);
  while (from < to) {
    const uint64_t row = from / row_bytes;
    const uint64_t at = from % row_bytes;
    const uint64_t start = rows.begin_of(row);
    if (!dense || at != 0 || to - from < row_bytes) {
      const uint64_t size = std::min(row_bytes - at, to - from);
      file.read_at(start + at, target.place(row, at, size));
      from += size;
      continue;
    }
    const uint64_t fit = (piece_bytes_ / 2 - row_bytes) / std::max<uint64_t>(stride, 1) + 1;
    const uint64_t count = std::min(fit, (to - from) / row_bytes);
    const std::span<std::byte> window = scratch().first((count - 1) * stride + row_bytes);
    file.read_at(start, window);
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(target.place(row + i, 0, row_bytes).data(), window.data() + i * stride,
                  row_bytes);
    }
    from += count * row_bytes;
  }
}

// The same for rows that follow each other in the file: one read for many of them, however long
// they are. Returns the CRC32 of what it has read if `checked`.
uint32_t ItemReader::read_window(const Rows& rows, uint64_t from, uint64_t to, const Target& target,
                                 bool checked) {
  const InputFile& file = inputs_[rows.file];
  uint32_t crc = 0;
  while (from < to) {
    const uint64_t in_row = std::min(rows.row_bytes - from % rows.row_bytes, to - from);
    const bool direct = in_row >= piece_bytes_ / 2;
    const uint64_t size = direct ? in_row : std::min(to - from, piece_bytes_ / 2);
    const std::span<std::byte> window =
        direct ? target.place(from / rows.row_bytes, from % rows.row_bytes, in_row)
               : scratch().first(size);
    file.read_at(rows.offset + from, window);
    if (checked) crc = crc32(crc, window);
    for (uint64_t done = 0; done < size && !direct;) {
      const uint64_t at = (from + done) % rows.row_bytes;
      const uint64_t piece = std::min(rows.row_bytes - at, size - done);
      std::memcpy(target.place((from + done) / rows.row_bytes, at, piece).data(),
                  window.data() + done, piece);
      done += piece;
    }
    from += size;
  }
  return crc;
}

}  // namespace dsckpt
