// Checkpoints of torch.distributed.checkpoint: the `.metadata`, and the archives that it names in
// the files beside it.

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"
#include "format/dcp_metadata.h"
#include "inspect/verify/verification.h"
#include "io/content_name.h"
#include "io/opening_files.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

// A file beside a `.metadata`, as described there.
struct NamedFile {
  std::map<std::pair<uint64_t, uint64_t>, std::string> parts;  // by offset and size: a value there
};

std::map<std::string, NamedFile> files_named_by(const DcpMetadata& metadata) {
  std::map<std::string, NamedFile> files;
  for_each_place(metadata, [&](const std::string& name, const DcpPlace& place) {
    files[place.file].parts.emplace(std::pair(place.offset, place.size), name);
  });
  return files;
}

// Adds the parts of one file. A part beyond the end of the file is a finding.
void add_parts_of(Verification& v, const fs::path& path, FileId id, const NamedFile& named) {
  const InputFile& input = v.inputs[id];
  for (const auto& [place, name] : named.parts) {
    const auto& [offset, size] = place;
    CheckedFile& file = v.files.emplace_back();
    file.path = path;
    file.display = input.display();
    file.id = id;
    file.part = name;
    file.extent = {id, offset, size};
    if (offset <= input.size() && size <= input.size() - offset) continue;
    file.suspect = true;
    v.add({.check = Check::unreadable,
           .message = counted(size, "byte") + " from there on, but the file has " +
                      std::to_string(input.size()) + ": it is truncated",
           .file = file.display,
           .tensor = name,
           .offset = offset});
  }
}

// Opens the files named by a `.metadata` that are not open yet.
void add_named_files(Verification& v, const fs::path& metadata_path, const DcpMetadata& metadata) {
  const fs::path root = v.folder.display_root();
  for (const auto& [name, named] : files_named_by(metadata)) {
    const std::optional<fs::path> path = dcp_file_path(metadata_path.parent_path(), name);
    const std::string& first = named.parts.begin()->second;
    if (!path) {
      v.add({.check = Check::layout,
             .message = "lies outside the folder, in " + printable(name),
             .file = v.folder.display(metadata_path),
             .tensor = first});
      continue;
    }
    const fs::path stored = v.folder.in_roots(*path);
    if (!is_stored(stored)) {
      v.add({.check = Check::missing,
             .message = "is missing, with " + counted(named.parts.size(), "value") + " such as '" +
                        first + "'",
             .file = v.folder.display(*path)});
      continue;
    }
    try {
      const FileId id = v.inputs.add(stored, root);
      ++v.report.files;
      v.report.bytes += v.inputs[id].size();
      add_parts_of(v, stored, id, named);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      v.add(Check::unreadable, error);
    }
  }
}

}  // namespace

void open_dcp_files(Verification& v) {
  const fs::path root = v.folder.display_root();
  for (const fs::path& path : v.folder.dcp_metadata) {
    try {
      const FileId id = v.inputs.add(path, root);
      ++v.report.files;
      v.report.bytes += v.inputs[id].size();
      const DcpMetadata metadata = read_dcp_metadata(v.inputs[id]);
      std::map<std::string, std::vector<std::string>> unsupported;
      collect_unsupported(metadata, unsupported);
      for (const auto& [why, names] : unsupported) {
        const Where where{.file = v.inputs[id].display()};
        v.skip(Check::layout, "not all of it: " + where.prefix() + unsupported_text(why, names),
               true);
      }
      add_named_files(v, path, metadata);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::interrupted) throw;
      if (error.kind() != ErrorKind::unsupported) v.add(Check::unreadable, error);
      // open_checkpoint() meets the others again, and reports what was not checked.
    }
  }
  v.skip(Check::crc, "`.metadata` has no CRC32", true);
  for_each_index(v.files.size(), [&](size_t i) {
    CheckedFile& file = v.files[i];
    if (file.suspect) return;
    v.stop_if_cancelled();
    v.attempt(Check::unreadable, file, [&] {
      in_context({.tensor = file.part, .offset = file.extent.offset},
                 [&] { file.zip = ZipReader::open(v.inputs[file.id], file.extent); });
    });
  });
}

}  // namespace dsckpt
