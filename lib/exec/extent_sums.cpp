#include "exec/extent_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/sha256.h"
#include "exec/piece_work.h"
#include "exec/workers.h"

namespace dsckpt {
namespace {

std::string crc32_text(uint32_t crc) {
  std::string bytes;
  append_le<uint32_t>(bytes, crc);
  return bytes;
}

// Of one extent, buffer by buffer.
std::string sum_of_extent(const InputFile& file, const Extent& extent, SumKind kind,
                          Progress& progress) {
  constexpr uint64_t kBufferBytes = 256 << 10;  // as many as fit the caches of a core
  thread_local std::vector<std::byte> buffer(kBufferBytes);
  uint32_t crc = 0;
  Sha256 sha256;
  for (uint64_t at = 0; at < extent.size; at += kBufferBytes) {
    if (progress.cancelled) throw InterruptedError();
    const std::span<std::byte> piece =
        std::span(buffer).first(std::min<uint64_t>(kBufferBytes, extent.size - at));
    file.read_at(extent.offset + at, piece);
    if (kind == SumKind::crc32) {
      crc = crc32(crc, piece);
    } else {
      sha256.update(piece);
    }
    progress.bytes_done += piece.size();
  }
  if (kind == SumKind::crc32) return crc32_text(crc);
  const Sha256Digest digest = sha256.digest();
  return std::string(as_text(ByteSpan(digest)));
}

void sum_here(const InputFiles& inputs, std::span<const Extent> extents, SumKind kind,
              unsigned threads, Progress& progress, const OnSum& on_sum) {
  run_for_each(threads, extents.size(), [&](size_t i) {
    std::string sum;
    try {
      sum = sum_of_extent(inputs[extents[i].file], extents[i], kind, progress);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      return on_sum(i, {}, &error);
    }
    on_sum(i, sum, nullptr);
  });
}

class ExtentWork : public PieceWork {
 public:
  ExtentWork(const RankJob& job, std::span<const Extent> extents, SumKind kind,
             const Reading& reading, const OnSum& on_sum)
      : PieceWork(job, reading),
        extents_(extents),
        kind_(kind),
        threads_(reading.threads),
        on_sum_(on_sum) {
    for (const Extent& extent : extents) add_piece(extent.size, extent.file);
  }

 private:
  void write_task(VarintWriter& task, const BatchRange& pieces) const override {
    task.number(static_cast<uint64_t>(kind_));
    for (uint64_t i = pieces.first; i < pieces.last; ++i) {
      task.number(extents_[i].file);
      task.number(extents_[i].offset);
      task.number(extents_[i].size);
    }
  }

  std::string answer(std::string_view task, RankInputs& inputs, Progress& progress) override {
    return sum_for_group(task, inputs, threads_, progress);
  }

  void take(const BatchRange& pieces, VarintReader& answer) override {
    if (pieces.last > extents_.size()) throw CorruptError({}, "an answer about nothing");
    for (uint64_t i = pieces.first; i < pieces.last; ++i) {
      const bool failed = answer.number() != 0;
      const std::string text = answer.text();
      if (!failed) {
        on_sum_(i, text, nullptr);
        continue;
      }
      try {
        throw_failure(text, {});
      } catch (const Error& error) {
        on_sum_(i, {}, &error);
      }
    }
  }

  const std::span<const Extent> extents_;
  const SumKind kind_;
  const unsigned threads_;
  const OnSum& on_sum_;
};

}  // namespace

void sum_extents(const InputFiles& inputs, std::span<const Extent> extents, SumKind kind,
                 const Reading& reading, const OnSum& on_sum) {
  if (reading.group == nullptr) {
    for (const Extent& extent : extents) reading.progress.bytes_total += extent.size;
    return sum_here(inputs, extents, kind, reading.threads, reading.progress, on_sum);
  }
  RankJob job{.tasks = Tasks::extent_sums};
  job.add_inputs(inputs);
  ExtentWork(job, extents, kind, reading, on_sum).run();
}

std::string sum_for_group(std::string_view task, RankInputs& inputs, unsigned threads,
                          Progress& progress) {
  VarintReader reader(task);
  const BatchRange pieces = read_range(reader);
  const auto kind = static_cast<SumKind>(reader.number());
  std::vector<Extent> extents;
  for (uint64_t i = pieces.first; i < pieces.last; ++i) {
    Extent extent{.file = inputs.open(static_cast<FileId>(reader.number()))};
    extent.offset = reader.number();
    extent.size = reader.number();
    extents.push_back(extent);
  }
  std::vector<std::pair<bool, std::string>> sums(extents.size());
  sum_here(inputs.files(), extents, kind, threads, progress,
           [&](size_t i, std::string_view sum, const Error* failure) {
             sums[i] = failure == nullptr ? std::pair(false, std::string(sum))
                                          : std::pair(true, encode_failure(*failure));
           });
  VarintWriter answer;
  write_range(answer, pieces);
  for (const auto& [failed, text] : sums) {
    answer.number(failed ? 1 : 0);
    answer.text(text);
  }
  return answer.take();
}

}  // namespace dsckpt
