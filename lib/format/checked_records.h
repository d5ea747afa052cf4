// Finds the records of zips that a plan reads from, so that their checksums are checked on the way.
//
// Planners need not list them: files that are not open yet are examined once more. Files that are
// not zips, or zips without checksums, have no records here.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// For records that are copied with everything around them: check their frame too
// (ZipReader::check_frame), even for records without data.
enum class Frames : uint8_t { checked, unchecked };

// Archives of whole files that are open, by the numbers of the files; nullptr for others. It may be
// shorter than there are files.
using OpenArchives = std::vector<const TorchArchive*>;

// All records that any item of `plan` reads a byte of, without those of the files `but`. Reads the
// directory of each file that is not in `open`, and the local header of each of these records.
// Throws IoError. Throws CorruptError for a zip with a damaged directory, and for a record whose
// header and directory disagree. Throws UnsupportedError for a file of torch's that seems to be
// compressed.
std::vector<InputRecord> records_read(const CopyPlan& plan, const InputFiles& inputs,
                                      const std::set<FileId>& but = {},
                                      Frames frames = Frames::checked,
                                      const OpenArchives& open = {});

// All records of these files, each file once. Throws as records_read().
std::vector<InputRecord> all_records(const InputFiles& inputs, std::vector<FileId> files,
                                     Frames frames = Frames::checked,
                                     const OpenArchives& open = {});

// Puts the whole file as the content of `out`, in pieces that end where records do.
void put_file(PlanBuilder& plan, OutputId out, const InputFiles& inputs, FileId file);
// The same of a file of `size` bytes that is open.
void put_file(PlanBuilder& plan, OutputId out, const TorchArchive& archive, uint64_t size);

}  // namespace dsckpt
