#include "exec/extent_sums.h"

#include <algorithm>
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

// Returns the sum of one extent, which is read buffer by buffer.
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
  ExtentWork(const InputFiles& inputs, std::span<const Extent> extents, SumKind kind,
             const Reading& reading, const OnSum& on_sum)
      : PieceWork(PieceKind::extent_sums, reading),
        inputs_(inputs),
        extents_(extents),
        kind_(kind),
        on_sum_(on_sum) {
    for (const Extent& extent : extents) add_piece(extent.size, number_of(inputs, extent.file));
  }

 private:
  void write_question(VarintWriter& question) const override {
    question.number(static_cast<uint64_t>(kind_));
  }

  void write_piece(VarintWriter& text, uint64_t piece) override {
    const Extent& extent = extents_[piece];
    text(number_of(inputs_, extent.file), extent.offset, extent.size);
  }

  std::string answer(std::string_view task, RankInputs& inputs, unsigned threads,
                     Progress& progress) override {
    return sum_for_rank(task, inputs, threads, progress);
  }

  void take(uint64_t piece, VarintReader& answer) override {
    const bool failed = answer.number() != 0;
    const std::string text = answer.text();
    if (!failed) return on_sum_(piece, text, nullptr);
    try {
      throw_failure(text, {});
    } catch (const Error& error) {
      on_sum_(piece, {}, &error);
    }
  }

  const InputFiles& inputs_;
  const std::span<const Extent> extents_;
  const SumKind kind_;
  const OnSum& on_sum_;
};

}  // namespace

void sum_extents(const InputFiles& inputs, std::span<const Extent> extents, SumKind kind,
                 const Reading& reading, const OnSum& on_sum) {
  if (reading.readers != nullptr) {
    return ExtentWork(inputs, extents, kind, reading, on_sum).run();
  }
  for (const Extent& extent : extents) reading.progress.bytes_total += extent.size;
  sum_here(inputs, extents, kind, reading.threads, reading.progress, on_sum);
}

std::string sum_for_rank(std::string_view bytes, RankInputs& inputs, unsigned threads,
                         Progress& progress) {
  const PieceTask task = PieceTask::decode(bytes);
  const auto kind = static_cast<SumKind>(VarintReader(task.question).number());
  std::vector<Extent> extents;
  for (const std::string& piece : task.pieces) {
    VarintReader reader(piece);
    Extent& extent = extents.emplace_back();
    reader(extent.file, extent.offset, extent.size);
    extent.file = inputs.open(extent.file);
  }
  std::vector<std::string> answers(extents.size());
  sum_here(inputs.files(), extents, kind, threads, progress,
           [&](size_t i, std::string_view sum, const Error* failure) {
             VarintWriter answer;
             answer.number(failure == nullptr ? 0 : 1);
             answer.text(failure == nullptr ? sum : encode_failure(*failure));
             answers[i] = answer.take();
           });
  return encode_answers(answers);
}

}  // namespace dsckpt
