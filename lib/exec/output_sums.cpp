#include "exec/output_sums.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/kernels.h"
#include "dsckpt/error.h"
#include "exec/patches.h"

namespace dsckpt {
OutputSums::OutputSums(const CopyPlan& plan, Sink& target,
                       const std::function<bool(OutputId)>& is_rewritten)
    : target_(target) {
  for (size_t i = 0; i < plan.outputs().size(); ++i) outputs_.emplace_back();
  for (const auto& [out, offsets] : patches_of(plan, is_rewritten)) {
    outputs_[out].patches = offsets;
  }
}

void OutputSums::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  add(out, offset, bytes);
  target_.write_at(out, offset, bytes);
}

void OutputSums::patch(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  {
    Output& output = outputs_[out];
    const std::lock_guard lock(output.mutex);
    output.patched[offset] = load_le<uint32_t>(bytes.data());
  }
  target_.patch(out, offset, bytes);
}

void OutputSums::add(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  Output& output = outputs_[out];
  while (!bytes.empty()) {
    const uint64_t room = kChunk - offset % kChunk;
    const auto part = bytes.first(std::min<uint64_t>(room, bytes.size()));
    const uint32_t crc = crc32_unpatched(output.patches, offset, part);
    const std::lock_guard lock(output.mutex);
    const auto at = output.pieces.insert({offset, {part.size(), crc}}).first;
    const auto join = [&](auto left, auto right) {
      if (left->first + left->second.size != right->first || right->first % kChunk == 0) return;
      left->second.crc = crc32_combine(left->second.crc, right->second.crc, right->second.size);
      left->second.size += right->second.size;
      output.pieces.erase(right);
    };
    if (const auto next = std::next(at); next != output.pieces.end()) join(at, next);
    if (at != output.pieces.begin()) join(std::prev(at), at);
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
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
    for (const auto& [offset, value] : outputs_[out].patched) {
      state.patched.push_back({out, offset, value});
    }
  }
  return state;
}

void OutputSums::restore(const State& state) {
  for (const State::Written& piece : state.written) {
    if (piece.out >= outputs_.size()) throw CorruptError({}, "an output that the plan lacks");
    Output& output = outputs_[piece.out];
    output.pieces[piece.offset] = {piece.size, piece.crc};
  }
  for (const State::Patched& patch : state.patched) {
    if (patch.out >= outputs_.size()) throw CorruptError({}, "an output that the plan lacks");
    outputs_[patch.out].patched[patch.offset] = patch.value;
  }
}

std::vector<MeantFile> OutputSums::meant(const std::function<std::filesystem::path(OutputId)>& path,
                                         const std::function<std::string(OutputId)>& display,
                                         OutputId first, OutputId last) const {
  std::vector<MeantFile> files;
  for (OutputId out = first; out < std::min<size_t>(outputs_.size(), last); ++out) {
    const Output& output = outputs_[out];
    if (output.pieces.empty()) continue;
    files.push_back({path(out), display(out), {}, output.patches, output.patched});
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
