// The inside of a Source: the files it opened and the checkpoint they are.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "checkpoint/checkpoint.h"
#include "dsckpt/checkpoint.h"
#include "dsckpt/error.h"
#include "io/input_file.h"
#include "io/mapped_file.h"
#include "job/gather.h"

namespace dsckpt {

// Planning adds files to `inputs`: one thread at a time.
struct Source::Impl {
  std::filesystem::path path;  // as the user named it
  SourceOptions options = {};
  std::shared_ptr<InputFiles> inputs;
  // SourceOptions::like; nullptr without. Among the same inputs.
  std::shared_ptr<const Checkpoint> like = {};
  std::shared_ptr<const Checkpoint> checkpoint = {};
  // For Source::view. Any thread.
  std::shared_ptr<MappedFile> mapping_of(FileId file);
  std::vector<std::string> notes = {};  // on the inputs, besides the checkpoint's
  CheckedRecords checked = {};

 private:
  std::mutex mutex_ = {};
  std::map<FileId, std::shared_ptr<MappedFile>> mappings_ = {};
};

// A checkpoint that was opened already.
Source source_of(std::filesystem::path path, std::shared_ptr<InputFiles> inputs,
                 std::shared_ptr<const Checkpoint> checkpoint);

// For plans that need the optimizer's states, and CheckpointFacts::states is not StatesTold::yes.
UnsupportedError unassigned_states(const Checkpoint& checkpoint);

// For plans that need every value of weights. Throws UnsupportedError if some are tensors of kinds
// that are not read (Checkpoint::valueless).
void check_weights_are_read(const Checkpoint& checkpoint);

}  // namespace dsckpt
