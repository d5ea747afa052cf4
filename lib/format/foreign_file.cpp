#include "format/foreign_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "format/safetensors.h"
#include "format/torch_form.h"

namespace dsckpt {
namespace {

using namespace std::literals;

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char want, char got) {
           return want == static_cast<char>(std::tolower(static_cast<unsigned char>(got)));
         });
}

bool is_text(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x80 || std::isprint(byte) != 0 || std::isspace(byte) != 0;
  });
}

std::string quote_start(std::string_view head) {
  const std::string_view line = head.substr(0, std::min(head.find('\n'), size_t{40}));
  return "a text file that starts with \"" + std::string(line) + "\"";
}

}  // namespace

std::vector<uint64_t> datastates_pickles(const InputFile& file) {
  constexpr std::string_view kKey = "\"datastates_metadata\"";
  std::vector<uint64_t> offsets;
  KeyedSet<uint64_t> seen;
  if (!SafetensorsFile::probe(file)) return offsets;
  const auto size = load_le<uint64_t>(file.read(0, 8).data());
  const std::vector<std::byte> bytes = file.read(8, size);
  const std::string_view header = as_text(bytes);
  size_t bracket = 0;
  for (size_t at = header.find(kKey); at != header.npos; at = header.find(kKey, at + 1)) {
    if (at < bracket) continue;  // several keys before one bracket
    bracket = header.find('[', at);
    uint64_t offset = 0;
    if (bracket == header.npos) break;
    const char* digits = header.data() + bracket + 1;
    if (std::from_chars(digits, header.data() + header.size(), offset).ec != std::errc()) continue;
    if (offset < file.size() - 8 - size && seen.insert(offset).second) {
      offsets.push_back(8 + size + offset);
    }
  }
  return offsets;
}

Error foreign_file(const InputFile& file, std::string_view expected) {
  const Where where{.file = file.display()};
  const auto corrupt = [&](const std::string& what) {
    return CorruptError(where, "not " + std::string(expected) + ": " + what);
  };
  if (file.size() == 0) return CorruptError(where, "the file is empty");
  const std::vector<std::byte> bytes = file.read(0, std::min(file.size(), uint64_t{kFormHead}));
  const std::string_view head = as_text(bytes);

  if (head.starts_with("version https://git-lfs")) {
    return CorruptError(where, "a Git LFS pointer, not the file itself")
        .with_hint("fetch the file with: git lfs pull");
  }
  const bool is_named_tar = head.size() == kFormHead && head.substr(257, 5) == "ustar";
  if (is_named_tar || is_tar(head)) {
    const std::string_view first = head.substr(0, head.find('\0'));
    if (first == "storages" || first == "tensors" || first == "pickle" || first == "sys_info") {
      return UnsupportedError(where, "a tar file of torch 0.1")
          .with_hint("load it with torch.load and save it again");
    }
    return corrupt("a tar archive");
  }
  std::string_view text = head;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
  if (starts_with_ignoring_case(text, "<!doctype html") ||
      starts_with_ignoring_case(text, "<html")) {
    return corrupt("an HTML page, perhaps an error message of a download");
  }
  if (std::all_of(head.begin(), head.end(), [](char c) { return c == '\0'; })) {
    return corrupt("it starts with zeros, as a file whose data never reached the disk");
  }
  if (head.starts_with("\x1F\x8B")) return corrupt("compressed with gzip");
  if (head.starts_with("\x28\xB5\x2F\xFD")) return corrupt("compressed with zstd");
  if (head.starts_with("BZh")) return corrupt("compressed with bzip2");
  if (head.starts_with("\xFD\x37zXZ\0"sv)) return corrupt("compressed with xz");
  if (head.starts_with("\x89HDF\r\n\x1A\n")) return corrupt("an HDF5 file");
  if (head.starts_with("\x93NUMPY")) return corrupt("a NumPy array");
  if (head.starts_with("GGUF")) return corrupt("a GGUF file");
  if (!datastates_pickles(file).empty()) {
    return UnsupportedError(where, "written by DataStates, in a form of its own")
        .with_hint("load it with DataStates, and save it without datastates_ckpt");
  }
  if (SafetensorsFile::probe(file)) return corrupt("a safetensors file");
  if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) {
    return corrupt("a plain pickle");
  }
  if (is_text(head)) return corrupt(quote_start(head));
  return corrupt("its first bytes belong to no known format");
}

}  // namespace dsckpt
