#include "io/input_file.h"

#include <algorithm>
#include <cstddef>

#include "base/text.h"
#include "dsckpt/error.h"
#include "io/far_files.h"
#include "io/packed_file.h"
#include "io/stored_file.h"
#include "io/zstd_file.h"

namespace dsckpt {
namespace fs = std::filesystem;

InputFile::InputFile(const fs::path& path, std::string display) : path_(content_path(path)) {
  const fs::path stored = dsckpt::stored_path(path).value_or(path);
  if (display.empty()) display = shown_path(path);
  display_ = content_path(display).string();
  open(stored, far_file(stored));
}

InputFile::InputFile(const fs::path& path, std::string display, const FarFile& stored)
    : path_(path), display_(std::move(display)) {
  open(stored.path, stored);
}

void InputFile::open(const fs::path& stored, const std::optional<FarFile>& far) {
  encoding_ = encoding_of(stored);
  std::string stored_display = display_;
  if (encoding_ != Encoding::plain) stored_display += stored.extension().string();
  stored_ = std::make_unique<StoredFile>(stored, std::move(stored_display), far);
  if (encoding_ == Encoding::packed) content_ = std::make_unique<PackedFile>(*stored_);
  if (encoding_ == Encoding::zstd) content_ = std::make_unique<ZstdFile>(*stored_);
  size_ = content_ ? content_->size() : stored_->size();
}

InputFile::~InputFile() = default;

const fs::path& InputFile::stored_path() const {
  return stored_->path();
}

uint64_t InputFile::stored_size() const {
  return stored_->size();
}

int64_t InputFile::modified() const {
  return stored_->modified();
}

const FarFile* InputFile::far() const {
  return stored_->far();
}

void InputFile::check_unchanged() const {
  stored_->check_unchanged();
}

double InputFile::stored_bytes(uint64_t offset, uint64_t size) const {
  return content_ ? content_->stored_bytes(offset, size) : static_cast<double>(size);
}

std::optional<Sha256Digest> InputFile::sha256() const {
  return content_ ? content_->sha256() : std::nullopt;
}

void InputFile::read_exactly() const {
  stored_->read_exactly();
}

void InputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  if (!content_) return stored_->read_at(offset, out);
  if (offset > size_ || out.size() > size_ - offset) {
    throw IoError({.file = display(), .offset = offset},
                  "file ends " + counted(offset + out.size() - size_, "byte") + " early", 0);
  }
  content_->read_at(offset, out);
}

bool InputFile::is_cached(uint64_t offset) const {
  return stored_->is_cached(content_ ? content_->stored_offset(offset) : offset);
}

std::vector<std::byte> InputFile::read(uint64_t offset, uint64_t size) const {
  if (offset > this->size() || size > this->size() - offset) {
    throw CorruptError({.file = display(), .offset = offset},
                       counted(size, "byte") + " expected, " +
                           std::to_string(this->size() - std::min(offset, this->size())) + " left");
  }
  if (size > kMostAtOnce && size / kMostExpansion > stored_size()) {
    throw CorruptError({.file = display(), .offset = offset},
                       counted(size, "byte") + " at once, of a file that takes " +
                           std::to_string(stored_size()) + " on the disk: refused");
  }
  if (!kept_.empty()) {
    const auto begin = kept_.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
  }
  std::vector<std::byte> out(static_cast<size_t>(size));
  read_at(offset, out);
  return out;
}

void InputFile::keep_small() {
  constexpr uint64_t kSmall = 64 << 10;
  if (size() <= kSmall && kept_.empty()) kept_ = read(0, size());
}

FileId InputFiles::add(const fs::path& path, const fs::path& root) {
  if (const auto known = ids_.find(path.native()); known != ids_.end()) return known->second;
  std::string display = shown_path(path);
  if (!root.empty()) {
    const fs::path relative = path.lexically_relative(root);
    if (!relative.empty() && *relative.begin() != "..") display = relative.string();
  }
  const FileId id = add_again(path, std::move(display));
  ids_.emplace(path.native(), id);
  return id;
}

FileId InputFiles::add_kept(const fs::path& path, const fs::path& root) {
  const FileId id = add(path, root);
  files_[id]->keep_small();
  return id;
}

FileId InputFiles::add_again(const fs::path& path, std::string display) {
  files_.push_back(std::make_shared<InputFile>(path, std::move(display)));
  return static_cast<FileId>(files_.size() - 1);
}

FileId InputFiles::add_far(const fs::path& path, std::string display, const FarFile& stored) {
  files_.push_back(std::make_shared<InputFile>(path, std::move(display), stored));
  return static_cast<FileId>(files_.size() - 1);
}

InputFiles InputFiles::selected(std::span<const FileId> ids) const {
  InputFiles some;
  for (const FileId id : ids) some.files_.push_back(files_.at(id));
  return some;
}

}  // namespace dsckpt
