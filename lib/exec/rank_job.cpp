#include "exec/rank_job.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/text.h"
#include "io/far_files.h"

namespace dsckpt {
namespace {

constexpr uint64_t kBug = 255;  // in the place of an ErrorKind

}  // namespace

RankJob::Input RankJob::Input::of(const InputFile& file) {
  Input input{std::filesystem::absolute(file.path()).string(), file.display(), file.stored_size(),
              file.modified()};
  const FarFile* const far = file.far();
  if (far != nullptr && far->machine == kNoMachine) {
    input.path = shown_path(file.path());
    input.path_there = shown_path(file.stored_path());
    input.version = far->version;
  } else if (has_far_files()) {
    input.owner = far != nullptr ? far->machine : 0;
    input.path_there =
        (far != nullptr ? far->path : std::filesystem::absolute(file.stored_path())).string();
  }
  return input;
}

FileId RankJob::Input::open(InputFiles& files) const {
  if (!version) return files.add_again(path, display);
  return files.add_far(path, display, far_file_called(path_there, stored_size, modified, *version));
}

std::string RankJob::Input::site() const {
  if (!version) return "";
  return path_there.substr(0, path_there.find('/', path_there.find("://") + 3));
}

void RankJob::add_inputs(const InputFiles& files) {
  for (FileId file = 0; file < files.size(); ++file) inputs.push_back(Input::of(files[file]));
}

IoError other_input(const RankJob::Input& wanted, const InputFile& file, bool on_rank) {
  return IoError({.file = wanted.display},
                 std::string("is not the same file here as ") +
                     (on_rank ? "on rank 0" : "when it was planned") + ": " +
                     counted(file.stored_size(), "byte") + " instead of " +
                     std::to_string(wanted.stored_size) +
                     (file.stored_size() == wanted.stored_size ? ", written at another time" : ""),
                 0)
      .with_hint(on_rank ? "all ranks must see the same files"
                         : "all steps must see the same files; or abandon it, and plan anew");
}

uint64_t rate_of_rank(uint64_t bytes_per_second, int ranks) {
  if (bytes_per_second == 0) return 0;
  return std::max<uint64_t>(bytes_per_second / static_cast<uint64_t>(ranks), 1);
}

std::string encode_failure(const std::exception& failure) {
  VarintWriter writer;
  const auto* error = dynamic_cast<const Error*>(&failure);
  if (error == nullptr) {
    const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
    writer.number(memory ? static_cast<uint64_t>(ErrorKind::io) : kBug);
    writer.text(memory ? "out of memory" : failure.what());
    return writer.take();
  }
  writer.number(static_cast<uint64_t>(error->kind()));
  writer.text(error->message());
  writer.text(error->hint());
  writer.text(error->where().file);
  writer.text(error->where().member);
  writer.text(error->where().tensor);
  writer.number(error->where().offset ? 1 : 0);
  writer.number(error->where().offset.value_or(0));
  writer.number(static_cast<uint64_t>(error->errno_value()));
  return writer.take();
}

bool is_of_rank(std::string_view failure) {
  const uint64_t kind = VarintReader(failure).number();
  return kind == kBug || static_cast<ErrorKind>(kind) == ErrorKind::io;
}

void throw_failure(std::string_view bytes, const std::string& who) {
  VarintReader reader(bytes);
  const uint64_t kind = reader.number();
  const std::string message = (who.empty() ? "" : who + ": ") + reader.text();
  if (kind == kBug) throw std::runtime_error(message);
  if (reader.at_end()) throw IoError({}, message, 0);
  const std::string hint = reader.text();
  Where where{.file = reader.text(), .member = reader.text(), .tensor = reader.text()};
  const bool has_offset = reader.number() != 0;
  const uint64_t offset = reader.number();
  if (has_offset) where.offset = offset;
  const auto errno_value = static_cast<int>(reader.number());
  if (static_cast<ErrorKind>(kind) == ErrorKind::io) {
    // The text of errno is part of the message already.
    Error(IoError(std::move(where), "", errno_value), message).hinted(hint).raise();
  }
  Error(static_cast<ErrorKind>(kind), std::move(where), message).hinted(hint).raise();
}

}  // namespace dsckpt
