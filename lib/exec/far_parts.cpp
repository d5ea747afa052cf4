#include "exec/far_parts.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "base/bytes.h"
#include "base/kernels.h"
#include "base/random.h"
#include "dsckpt/error.h"
#include "exec/staged_files.h"
#include "exec/workers.h"
#include "io/text_file.h"

namespace dsckpt {

void FarParts::Ranges::add(uint64_t begin, uint64_t end) {
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ends_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    bytes_ -= at->second - at->first;
    at = ends_.erase(at);
  }
  bytes_ += end - begin;
  ends_.emplace(begin, end);
}

FarParts::FarParts(const CopyPlan& plan, FarPlace target, Cut cut,
                   std::vector<FarStaging::Object> objects, std::function<void()> on_sent)
    : plan_(plan),
      target_(std::move(target)),
      cut_(cut),
      objects_(std::move(objects)),
      on_sent_(std::move(on_sent)) {
  for (size_t i = 0; i < objects_.size(); ++i) files_.emplace_back();
}

std::string FarParts::shown(OutputId out) const {
  return target_.name + "/" + objects_[out].path;
}

bool FarParts::is_packed(OutputId out) const {
  return is_stored_packed(plan_.outputs()[out], cut_.packed);
}

uint64_t FarParts::number_of(OutputId out, uint64_t offset) const {
  return is_held(out) ? 0 : offset / cut_.part_bytes;
}

uint64_t FarParts::part_size(OutputId out, uint64_t number) const {
  if (is_held(out)) return plan_.outputs()[out].size;
  if (is_packed(out)) return cut_.part_bytes;  // how long it becomes is seen at its end
  return std::min(cut_.part_bytes, plan_.outputs()[out].size - number * cut_.part_bytes);
}

// Returns whether others have sent that part, or will complete it. Locked.
bool FarParts::goes_elsewhere(File& file, uint64_t number, uint64_t offset,
                              std::span<const std::byte> bytes) const {
  if (file.is_over || (number < file.etags.size() && !file.etags[number].empty())) return true;
  const auto late = file.late.find(number);
  if (late == file.late.end()) return false;
  late->second.emplace_back(offset, as_text(bytes));
  return true;
}

void FarParts::write_at(OutputId out, uint64_t offset, std::span<const std::byte> bytes) {
  File& file = files_[out];
  while (!bytes.empty()) {
    const uint64_t number = number_of(out, offset);
    const uint64_t begin = offset;
    const uint64_t at = offset - number * cut_.part_bytes;
    const uint64_t size = part_size(out, number);
    const bool is_growing = is_held(out) && is_packed(out);
    const std::span<const std::byte> some =
        bytes.first(is_growing ? bytes.size() : std::min<uint64_t>(bytes.size(), size - at));
    offset += some.size();
    bytes = bytes.subspan(some.size());
    Part whole;
    {
      const std::lock_guard lock(file.mutex);
      if (goes_elsewhere(file, number, begin, some)) continue;
      if (is_held(out) || some.size() < size) {
        Part& part = file.parts[number];
        // A packed output may be short.
        const uint64_t end = is_packed(out) ? at + some.size() : size;
        if (part.bytes.empty()) part.bytes.reserve(size);
        if (part.bytes.size() < end) part.bytes.resize(end);
        std::memcpy(part.bytes.data() + at, some.data(), some.size());
        part.written.add(at, at + some.size());
        if (is_held(out) || part.written.bytes() < size) continue;
        whole = std::move(part);
        file.parts.erase(number);
      }
    }
    send(out, number, whole.bytes.empty() ? some : std::span<const std::byte>(whole.bytes));
  }
}

std::string FarParts::upload_of(OutputId out) {
  FarStaging::Object& object = objects_[out];
  const std::lock_guard lock(files_[out].mutex);
  if (!object.upload.empty()) return object.upload;
  const auto doubt = [&] {
    const std::lock_guard doubting(doubting_);
    doubtful_.insert(object.path);
  };
  try {
    FarStore::Begun begun = target_.store->begin_upload(object.path);
    object.upload = std::move(begun.id);
    if (begun.maybe_twice) doubt();
  } catch (...) {
    doubt();
    throw;
  }
  return object.upload;
}

void FarParts::end_upload(OutputId out) {
  FarStaging::Object& object = objects_[out];
  if (object.upload.empty()) return;
  target_.store->abort_upload(object.path, object.upload);
  object.upload.clear();
  File& file = files_[out];
  file.etags.clear();
  file.late.clear();
  file.size = 0;
  file.is_over = false;
}

void FarParts::send(OutputId out, uint64_t number, std::span<const std::byte> bytes) {
  File& file = files_[out];
  const std::string upload = upload_of(out);
  const uint32_t crc = crc32(0, bytes);
  {
    const std::lock_guard lock(file.mutex);
    const auto [known, is_new] = file.crcs.emplace(number, crc);
    if (!is_new && known->second != crc) {
      throw IoError({.file = shown(out), .offset = number * cut_.part_bytes},
                    "was written again, and the input now gives different bytes", 0);
    }
  }
  std::string etag =
      target_.store->send_part(path(out), upload, static_cast<unsigned>(number + 1), bytes);
  {
    const std::lock_guard lock(file.mutex);
    if (file.etags.size() <= number) file.etags.resize(number + 1);
    file.etags[number] = std::move(etag);
    file.size += bytes.size();
  }
  on_sent_();
}

void FarParts::finish(OutputId out) {
  File& file = files_[out];
  if (is_held(out) || !is_packed(out) || file.parts.size() != 1) return;
  // The last part of a packed file is as long as the file has become.
  const Part& last = file.parts.begin()->second;
  if (last.written.bytes() != last.bytes.size()) return;
  const auto [number, part] = std::move(*file.parts.begin());
  file.parts.clear();
  send(out, number, part.bytes);
}

std::span<const std::byte> FarParts::held(OutputId out) const {
  const File& file = files_[out];
  const bool has_none = file.parts.empty();
  const std::span<const std::byte> bytes =
      has_none ? std::span<const std::byte>() : file.parts.begin()->second.bytes;
  const uint64_t written = has_none ? 0 : file.parts.begin()->second.written.bytes();
  const bool is_whole = is_packed(out) || bytes.size() == plan_.outputs()[out].size;
  if (written != bytes.size() || !is_whole) throw std::logic_error("an output with holes");
  return bytes;
}

std::vector<std::string> FarParts::sent(OutputId out) const {
  const File& file = files_[out];
  const bool has_all = std::none_of(file.etags.begin(), file.etags.end(),
                                    [](const std::string& etag) { return etag.empty(); });
  const bool is_whole = is_packed(out) || file.size == plan_.outputs()[out].size;
  if (!file.parts.empty() || file.etags.empty() || !has_all || !is_whole) {
    throw std::logic_error("an output with holes");
  }
  return file.etags;
}

uint64_t FarParts::size(OutputId out) const {
  return is_held(out) ? held(out).size() : files_[out].size;
}

void FarParts::forget(OutputId out) {
  files_[out].is_over = true;
  files_[out].parts.clear();
}

SentWork FarParts::leave(const Folder& folder) {
  SentWork work;
  std::string bytes;
  for (OutputId out = 0; out < files_.size(); ++out) {
    const File& file = files_[out];
    for (uint64_t number = 0; number < file.etags.size(); ++number) {
      if (file.etags[number].empty()) continue;
      const uint64_t size = number + 1 < file.etags.size() || !is_packed(out)
                                ? part_size(out, number)
                                : file.size - number * cut_.part_bytes;
      work.sent.push_back({out, number, size, file.crcs.at(number), file.etags[number]});
    }
    for (const auto& [number, part] : file.parts) {
      for (const auto& [begin, end] : part.written.all()) {
        const auto some = std::span<const std::byte>(part.bytes).subspan(begin, end - begin);
        work.left.push_back({out, number * cut_.part_bytes + begin, some.size(), crc32(0, some)});
        bytes += as_text(some);
      }
    }
  }
  if (work.left.empty()) return work;
  work.left_in = std::to_string(random_number());
  replace_text_file(folder, work.left_in, bytes, false);
  return work;
}

void FarParts::take(const SentWork& work) {
  for (const SentPart& part : work.sent) {
    File& file = files_.at(part.out);
    if (file.etags.size() <= part.number) file.etags.resize(part.number + 1);
    file.etags[part.number] = part.etag;
    file.crcs[part.number] = part.crc;
    file.size += part.size;
  }
  uint64_t at = 0;
  for (const LeftBytes& bytes : work.left) {
    files_.at(bytes.out).late[number_of(bytes.out, bytes.offset)];
    left_.push_back({work.left_in, at, bytes});
    at += bytes.size;
  }
}

void FarParts::send_left(const Folder& folder) {
  const auto key = [&](const Left& left) {
    return std::pair(left.bytes.out, number_of(left.bytes.out, left.bytes.offset));
  };
  std::stable_sort(left_.begin(), left_.end(),
                   [&](const Left& a, const Left& b) { return key(a) < key(b); });
  std::vector<size_t> begins;  // of parts
  for (size_t i = 0; i < left_.size(); ++i) {
    if (i == 0 || key(left_[i]) != key(left_[i - 1])) begins.push_back(i);
  }
  begins.push_back(left_.size());
  run_for_each(target_.store->requests(), begins.size() - 1, [&](size_t part) {
    const auto [out, number] = key(left_[begins[part]]);
    File& file = files_[out];
    std::vector<std::pair<uint64_t, std::string>> late;
    {
      const std::lock_guard lock(file.mutex);
      if (file.is_over) return;
      late = std::move(file.late.at(number));
      file.late.erase(number);
    }
    for (size_t i = begins[part]; i < begins[part + 1]; ++i) {
      const Left& left = left_[i];
      const std::optional<std::string> bytes =
          own_content(folder, left.file, left.at, left.bytes.size);
      if (!bytes || bytes->size() != left.bytes.size ||
          crc32(0, as_byte_span(*bytes)) != left.bytes.crc) {
        throw IoError({.file = (folder.path() / left.file).string()},
                      "is damaged, and holds a part of " + shown(out), 0)
            .with_hint("dsckpt abandon, and plan anew");
      }
      write_at(out, left.bytes.offset, as_byte_span(*bytes));
    }
    for (const auto& [offset, bytes] : late) write_at(out, offset, as_byte_span(bytes));
  });
  left_.clear();
}

}  // namespace dsckpt
