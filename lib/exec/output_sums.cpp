#include "exec/output_sums.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/kernels.h"
#include "dsckpt/error.h"

namespace dsckpt {

OutputSums::OutputSums(const CopyPlan& plan, Sink& target)
    : target_(target), outputs_(plan.outputs().size()) {}

void OutputSums::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  for (uint64_t done = 0; done < bytes.size();) {
    const uint64_t at = offset + done;
    const auto part = bytes.subspan(done, std::min(kChunk - at % kChunk, bytes.size() - done));
    add(outputs_[out], at, {part.size(), crc32(0, part)});
    done += part.size();
  }
  target_.write_at(out, offset, bytes);
}

void OutputSums::add(Output& output, uint64_t offset, const Piece& piece) {
  const std::lock_guard lock(output.mutex);
  const auto at = output.pieces.insert({offset, piece}).first;
  const auto join = [&](auto left, auto right) {
    if (left->first + left->second.size != right->first || right->first % kChunk == 0) return;
    left->second.crc = crc32_combine(left->second.crc, right->second.crc, right->second.size);
    left->second.size += right->second.size;
    output.pieces.erase(right);
  };
  if (const auto next = std::next(at); next != output.pieces.end()) join(at, next);
  if (at != output.pieces.begin()) join(std::prev(at), at);
}

void OutputSums::finish(OutputId out) {
  target_.finish(out);
}

uint64_t OutputSums::bytes() const {
  uint64_t bytes = 0;
  for (const Output& output : outputs_) {
    for (const auto& [begin, piece] : output.pieces) bytes += piece.size;
  }
  return bytes;
}

OutputSums::State OutputSums::state() const {
  State state;
  for (OutputId out = 0; out < outputs_.size(); ++out) {
    for (const auto& [offset, piece] : outputs_[out].pieces) {
      state.written.push_back({out, offset, piece.size, piece.crc});
    }
  }
  return state;
}

void OutputSums::restore(const State& state) {
  for (const State::Written& piece : state.written) {
    if (piece.out >= outputs_.size()) throw CorruptError({}, "an output that the plan lacks");
    add(outputs_[piece.out], piece.offset, {piece.size, piece.crc});
  }
}

std::vector<MeantFile> OutputSums::meant(const std::function<std::filesystem::path(OutputId)>& path,
                                         const std::function<std::string(OutputId)>& display,
                                         OutputId first, OutputId last) const {
  std::vector<MeantFile> files;
  for (OutputId out = first; out < std::min<size_t>(outputs_.size(), last); ++out) {
    const Output& output = outputs_[out];
    if (output.pieces.empty()) continue;
    files.push_back({.path = path(out), .display = display(out)});
    for (const auto& [begin, piece] : output.pieces) {
      files.back().pieces.push_back({begin, piece.size, piece.crc});
    }
  }
  return files;
}

std::vector<MeantFile> OutputSums::last_meant(
    uint64_t bytes, const std::function<std::filesystem::path(OutputId)>& path,
    const std::function<std::string(OutputId)>& display) const {
  std::vector<MeantFile> files = meant(path, display);
  auto file = files.end();
  while (file != files.begin() && bytes > 0) {
    --file;
    auto piece = file->pieces.end();
    for (; piece != file->pieces.begin() && bytes > 0; --piece) {
      bytes -= std::min(bytes, std::prev(piece)->size);
    }
    file->pieces.erase(file->pieces.begin(), piece);
  }
  files.erase(files.begin(), file);
  return files;
}

}  // namespace dsckpt
