#include "reshard/resume_storages.h"

#include <algorithm>
#include <cstring>

#include "base/dtype_names.h"
#include "dsckpt/error.h"
#include "dsckpt/run.h"
#include "job/gather.h"
#include "plan/plan_part.h"
#include "plan/source_part.h"

namespace dsckpt {

ResumeStorages::ResumeStorages(std::shared_ptr<InputFiles> inputs,
                               const std::vector<std::vector<TensorSource>>& sources)
    : files_(std::move(inputs)) {
  std::vector<FileId> used;
  Renumbering<FileId> number_of(used);
  for (const std::vector<TensorSource>& file : sources) {
    std::vector<Storage>& storages = storages_.emplace_back();
    for (const TensorSource& source : file) {
      storages.push_back({.dtype = source.dtype(), .source = {}});
      if (source.numel() == 0) continue;
      if (source.numel() == 1)
        unread_numbers_.emplace_back(storages_.size() - 1, storages.size() - 1);
      VarintWriter writer;
      write_source(writer, source, 0, source.numel(), std::ref(number_of));
      storages.back().source = writer.take();
    }
  }
  for (const FileId file : used) {
    const std::vector<FilePart>* parts = files_->parts(file);
    opened_.emplace(static_cast<FileId>(inputs_.size()), file);
    inputs_.push_back(
        {RankJob::Input::of((*files_)[file]), parts != nullptr ? *parts : std::vector<FilePart>()});
  }
}

ResumeStorages::ResumeStorages(VarintReader& bytes) : files_(std::make_shared<InputFiles>()) {
  inputs_.resize(bytes.count());
  for (Input& input : inputs_) {
    bytes(input.file);
    input.parts.resize(bytes.count());
    for (FilePart& part : input.parts) {
      part.extent.offset = bytes.number();
      part.extent.size = bytes.number();
      part.name = bytes.text();
    }
  }
  storages_.resize(bytes.count());
  for (std::vector<Storage>& file : storages_) {
    file.resize(bytes.count());
    for (Storage& storage : file) {
      storage.dtype = static_cast<DType>(bytes.below(kDTypeCount));
      storage.source = bytes.text();
      storage.number = bytes.text();
    }
  }
}

void ResumeStorages::read_numbers() {
  std::vector<TensorSource> sources;
  std::vector<std::span<std::byte>> outs;
  for (const auto& [file, storage] : unread_numbers_) {
    sources.push_back(at(file, storage));
    std::string& number = storages_[file][storage].number;
    number.resize(sources.back().nbytes());
    outs.push_back(std::as_writable_bytes(std::span(number)));
  }
  unread_numbers_.clear();
  CheckedRecords checked;
  Progress progress;
  gather_checked(plan_gather(sources), *files_, outs, false, checked, progress);
}

bool ResumeStorages::copy_number(size_t file, size_t storage, std::span<std::byte> out) const {
  const std::string& number = storages_.at(file).at(storage).number;
  if (number.empty()) return false;
  std::memcpy(out.data(), number.data(), std::min(out.size(), number.size()));
  return true;
}

void ResumeStorages::write(VarintWriter& writer) {
  read_numbers();
  writer.number(inputs_.size());
  for (const Input& input : inputs_) {
    writer(input.file);
    writer.number(input.parts.size());
    for (const FilePart& part : input.parts) {
      writer.number(part.extent.offset);
      writer.number(part.extent.size);
      writer.text(part.name);
    }
  }
  writer.number(storages_.size());
  for (const std::vector<Storage>& file : storages_) {
    writer.number(file.size());
    for (const Storage& storage : file) {
      writer.number(static_cast<uint64_t>(storage.dtype));
      writer.text(storage.number.empty() ? storage.source : "");
      writer.text(storage.number);
    }
  }
}

std::set<std::string> ResumeStorages::sites() const {
  std::set<std::string> sites;
  for (const Input& input : inputs_) sites.insert(input.file.site());
  sites.erase("");
  return sites;
}

FileId ResumeStorages::open(FileId input) {
  if (const auto known = opened_.find(input); known != opened_.end()) return known->second;
  if (input >= inputs_.size()) throw CorruptError({}, "a file that the plan does not have");
  const Input& wanted = inputs_[input];
  const auto open_here = [&] {
    try {
      return wanted.file.open(*files_);
    } catch (const IoError& error) {
      if (!wanted.file.site().empty()) throw;
      throw IoError(error).with_hint("all ranks must see the same files");
    }
  };
  const FileId file = open_here();
  const InputFile& here = (*files_)[file];
  if (!wanted.file.is_same(here)) throw other_input(wanted.file, here, true);
  std::vector<FilePart> parts = wanted.parts;
  for (FilePart& part : parts) part.extent.file = file;
  if (!parts.empty()) files_->set_parts(file, std::move(parts));
  opened_.emplace(input, file);
  return file;
}

const TensorSource& ResumeStorages::at(size_t file, size_t storage) {
  const auto known = read_.find({file, storage});
  if (known != read_.end()) return known->second;
  const Storage& wanted = storages_.at(file).at(storage);
  if (wanted.source.empty()) {
    const auto [place, added] =
        read_.emplace(std::pair(file, storage), TensorSource::zeros(wanted.dtype, {0}));
    return place->second;
  }
  VarintReader reader(wanted.source);
  const auto [place, added] = read_.emplace(
      std::pair(file, storage), read_source(reader, [this](FileId input) { return open(input); }));
  return place->second;
}

}  // namespace dsckpt
