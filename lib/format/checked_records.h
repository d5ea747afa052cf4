// Which records of zips a plan reads from, so that their checksums are checked on the way.
//
// Whoever plans need not say it: what files are is looked at once more. Files that are no zips, or
// zips without checksums, have no records here.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "format/torch_archive.h"
#include "io/input_file.h"
#include "plan/copy_plan.h"

namespace dsckpt {

// Of records that are copied with all that is around them: whether that is checked, too
// (ZipReader::check_frame), also of those without any data.
enum class Frames : uint8_t { checked, unchecked };

// All records that any item of `plan` reads a byte of, without those of the files `but`. Reads the
// directory of each file, and the local header of each of these records. Throws IoError, and
// CorruptError for a zip whose directory is damaged and for a record whose header and directory
// disagree. UnsupportedError for what torch wrote and seems to be compressed.
std::vector<InputRecord> records_read(const CopyPlan& plan, const InputFiles& inputs,
                                      const std::set<FileId>& but = {},
                                      Frames frames = Frames::checked);

// All records of these files, each file once. Throws likewise.
std::vector<InputRecord> all_records(const InputFiles& inputs, std::vector<FileId> files,
                                     Frames frames = Frames::checked);

// The whole of a file as the content of `out`, in pieces that end where records do.
void put_file(PlanBuilder& plan, OutputId out, const InputFiles& inputs, FileId file);
// The same of a file of `size` bytes that is open.
void put_file(PlanBuilder& plan, OutputId out, const TorchArchive& archive, uint64_t size);

}  // namespace dsckpt
