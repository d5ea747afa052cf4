#include "exec/item_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

double* doubles(std::span<std::byte> bytes) {
  return reinterpret_cast<double*>(bytes.data());
}

// Returns DoRA's factor of a row, whose squares are in `sums`.
double factor_of(float magnitude, const std::array<double, 4>& sums) {
  return static_cast<double>(magnitude) / std::sqrt((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

// The place for the bytes of a column. Rows of `pitch` bytes, laid end to end, are in `bytes` from
// byte `first` on. The column begins `before` bytes into each row.
struct ItemReader::Target {
  std::span<std::byte> bytes;
  uint64_t pitch;
  uint64_t before;
  uint64_t first;

  // The place of `size` bytes of row `row`, from byte `at` of its column on.
  std::span<std::byte> place(uint64_t row, uint64_t at, uint64_t size) const {
    return bytes.subspan(row * pitch + before + at - first, size);
  }
};

uint64_t ItemReader::read(size_t index, uint64_t skip, std::span<std::byte> target, uint32_t* crc) {
  const CopyItem& item = plan_.items()[index];
  if (item.op == Op::low_rank) return update(item, skip, target, crc);
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
  // Bytes that are only moved need no cache, and compressed input is then read in whole frames.
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
// item's terms. Reports the bytes that belong to a record. Uses the first half of the chunk buffer:
// a quarter for a term, and one for elements that are added to it or compared.
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

namespace {

// Elements of an update that are computed at once: as many rows as fit in the second-level cache.
// So each row of the right factor is used for all of them.
constexpr uint64_t kTileElements = 64 << 10;

}  // namespace

// `rows` rows from `row` on, counted over all matrices, of one of them; of each `columns` elements
// from `column` on. Those of several rows are whole.
struct ItemReader::Tile {
  uint64_t row;
  uint64_t rows;
  uint64_t column;
  uint64_t columns;

  uint64_t elements() const { return rows * columns; }
};

// Fills `target` with the bytes of an update from `skip` on.
uint64_t ItemReader::update(const CopyItem& item, uint64_t skip, std::span<std::byte> target,
                            uint32_t* crc) {
  const PlannedUpdate& update = plan_.updates()[item.what];
  uint64_t bytes_read = 0;
  const std::shared_ptr<const Factors> factors = factors_.get(item.what, [&] {
    for (const ItemRange& range : {update.left.items, update.right.items, update.magnitude}) {
      for (const CopyItem& read : plan_.update_items(range)) {
        bytes_read += read.dst_size() / sizeof(float) * plan_.bytes_read_an_element(read);
      }
    }
    return load_factors(update);
  });
  const uint64_t out_size = size_of(item.to);
  const uint64_t first = item.source.offset + skip / out_size;
  const uint64_t count = target.size() / out_size;
  for (uint64_t done = 0; done < count;) {
    const uint64_t at = first + done;
    Tile tile{.row = at / update.columns, .rows = 1, .column = at % update.columns, .columns = 0};
    if (tile.column == 0 && count - done >= update.columns) {
      const uint64_t fit = std::max<uint64_t>(kTileElements / update.columns, 1);
      tile.rows =
          std::min({fit, (count - done) / update.columns, update.rows - tile.row % update.rows});
    }
    tile.columns = std::min({tile.rows > 1 ? update.columns : kTileElements,
                             update.columns - tile.column, count - done});
    if (update.magnitude.empty()) {
      merge_rounded(tile_of(update, *factors, tile), item.to, target.data() + done * out_size);
    } else {
      const std::span<double> values = merge_tile(update, *factors, tile);
      for (uint64_t i = 0; i < tile.rows; ++i) {
        const std::span<double> row = values.subspan(i * tile.columns, tile.columns);
        if (update.norms_of_columns) {
          multiply_each(row.data(), factors->column_factors.data() + tile.column, row.size());
          continue;
        }
        double factor = 0;
        if (tile.columns == update.columns) {
          std::array<double, 4> sums{};
          add_squares(row.data(), row.size(), sums);
          factor = factor_of(factors->magnitude[tile.row + i], sums);
        } else {
          // It needs the buffers.
          factor = row_factor(update, *factors, tile.row);
          merge_tile(update, *factors, tile);
        }
        multiply(row.data(), factor, row.size());
      }
      round_float64(values.data(), item.to, target.data() + done * out_size, values.size());
    }
    done += tile.elements();
  }
  if (crc != nullptr) *crc = crc32(0, target);
  return bytes_read + count * plan_.bytes_read_an_element(item);
}

// The tile's base is read into a buffer of the reader's.
MergedTile ItemReader::tile_of(const PlannedUpdate& update, const Factors& factors,
                               const Tile& tile) {
  const uint64_t count = tile.elements();
  if (base_.size() < count) base_.resize(std::max(count, kTileElements));
  const std::span<float> base = std::span(base_).first(count);
  read_float32(update.base, tile.row * update.columns + tile.column, base);
  const uint64_t batch = tile.row / update.rows;
  return {.base = base.data(),
          .scale = update.scale,
          .left = factors.left.data() + tile.row * update.rank,
          .right = factors.right.data() + batch * update.rank * update.columns + tile.column,
          .rows = tile.rows,
          .rank = update.rank,
          .columns = tile.columns,
          .pitch = update.columns,
          .right_norm = factors.right_norms[batch]};
}

// Base and product added, before they are divided by norms. In a buffer of the reader's.
std::span<double> ItemReader::merge_tile(const PlannedUpdate& update, const Factors& factors,
                                         const Tile& tile) {
  const uint64_t count = tile.elements();
  if (merged_.size() < count) merged_.resize(std::max(count, kTileElements));
  dsckpt::merge_tile(tile_of(update, factors, tile), merged_.data());
  return std::span(merged_).first(count);
}

// Returns the factor of a row that lies in the unit only in part.
double ItemReader::row_factor(const PlannedUpdate& update, const Factors& factors, uint64_t row) {
  if (row_update_ == &update && row_ == row) return row_factor_;
  std::array<double, 4> sums{};
  for (uint64_t column = 0; column < update.columns; column += kTileElements) {
    const Tile tile{.row = row,
                    .rows = 1,
                    .column = column,
                    .columns = std::min(kTileElements, update.columns - column)};
    const std::span<double> values = merge_tile(update, factors, tile);
    add_squares(values.data(), values.size(), sums);
  }
  row_update_ = &update;
  row_ = row;
  row_factor_ = factor_of(factors.magnitude[row], sums);
  return row_factor_;
}

// Elements of a tensor of updates from `first` on.
void ItemReader::read_float32(const ItemRange& items, uint64_t first, std::span<float> values) {
  const std::span<const CopyItem> all = plan_.update_items(items);
  uint64_t at = first * sizeof(float);
  const uint64_t end = at + values.size_bytes();
  auto item = std::partition_point(all.begin(), all.end(),
                                   [&](const CopyItem& each) { return each.dst_end() <= at; });
  std::span<std::byte> out = std::as_writable_bytes(values);
  for (; at < end; ++item) {
    const bool converts = item->from != item->to;
    const uint64_t in_size = size_of(item->from);
    while (at < std::min(item->dst_end(), end)) {
      const uint64_t left = (std::min(item->dst_end(), end) - at) / sizeof(float);
      const uint64_t count = std::min(left, piece_bytes_ / 2 / sizeof(float));
      const uint64_t skip = (at - item->dst) / sizeof(float) * in_size;
      const std::span<std::byte> target = out.first(count * sizeof(float));
      const std::span<std::byte> stored = converts ? unconverted().first(count * in_size) : target;
      if (item->op == Op::zeros) {
        std::fill(stored.begin(), stored.end(), std::byte{0});
      } else {
        read_piece(*item, skip, stored);
      }
      if (converts) convert(item->from, item->to, stored.data(), target.data(), count);
      out = out.subspan(target.size());
      at += target.size();
    }
  }
}

// Row by row, whatever the strides.
std::vector<float> ItemReader::read_factor(const PlannedUpdate::Factor& factor, uint64_t batches,
                                           uint64_t rows, uint64_t columns) {
  const std::span<const CopyItem> items = plan_.update_items(factor.items);
  std::vector<float> values(items.back().dst_end() / sizeof(float));
  read_float32(factor.items, 0, values);
  const bool in_order = factor.column_stride == 1 && (rows == 1 || factor.row_stride == columns) &&
                        (batches == 1 || factor.batch_stride == rows * columns);
  if (in_order) return values;
  std::vector<float> picked;
  picked.reserve(batches * rows * columns);
  for (uint64_t b = 0; b < batches; ++b) {
    for (uint64_t i = 0; i < rows; ++i) {
      for (uint64_t j = 0; j < columns; ++j) {
        picked.push_back(
            values[b * factor.batch_stride + i * factor.row_stride + j * factor.column_stride]);
      }
    }
  }
  return picked;
}

Factors ItemReader::load_factors(const PlannedUpdate& update) {
  Factors factors;
  if (update.left.items.empty()) {
    factors.left.assign(update.batches * update.rows * update.rank, 1.0F);
  } else {
    factors.left = read_factor(update.left, update.batches, update.rows, update.rank);
  }
  factors.right = read_factor(update.right, update.batches, update.rank, update.columns);
  for (uint64_t batch = 0; batch < update.batches; ++batch) {
    const float* right = factors.right.data() + batch * update.rank * update.columns;
    factors.right_norms.push_back(largest_column_norm(right, update.rank, update.columns));
  }
  if (update.magnitude.empty()) return factors;
  factors.magnitude.resize(update.norms_of_columns ? update.columns : update.rows);
  read_float32(update.magnitude, 0, factors.magnitude);
  if (update.norms_of_columns) factors.column_factors = column_factors(update, factors);
  return factors;
}

// The norms of columns need every row: a pass over the base before the first element is written.
std::vector<double> ItemReader::column_factors(const PlannedUpdate& update,
                                               const Factors& factors) {
  std::vector<double> columns(update.columns, 0.0);
  const uint64_t at_once = std::max<uint64_t>(kTileElements / update.columns, 1);
  for (uint64_t row = 0; row < update.rows; row += at_once) {
    for (uint64_t column = 0; column < update.columns; column += kTileElements) {
      const Tile tile{.row = row,
                      .rows = std::min(at_once, update.rows - row),
                      .column = column,
                      .columns = std::min(kTileElements, update.columns - column)};
      const std::span<double> values = merge_tile(update, factors, tile);
      for (uint64_t i = 0; i < tile.elements(); ++i) {
        columns[column + i % tile.columns] += values[i] * values[i];
      }
    }
  }
  for (uint64_t j = 0; j < columns.size(); ++j) {
    columns[j] = static_cast<double>(factors.magnitude[j]) / std::sqrt(columns[j]);
  }
  return columns;
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
    // The bytes of the column before a byte of the rows laid end to end.
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
