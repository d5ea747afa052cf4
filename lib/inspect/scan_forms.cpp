#include "inspect/scan_forms.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/foreign_file.h"
#include "format/safetensors.h"
#include "format/torch_form.h"

namespace dsckpt {
namespace {

using namespace std::literals;

struct Signature {
  std::string_view name;
  size_t offset;
  std::string_view bytes;
};

// Compressed forms and archives that are not opened here.
constexpr Signature kContainers[] = {
    {"7z archive", 0, "7z\xBC\xAF\x27\x1C"sv},
    {"gzip file", 0, "\x1F\x8B\x08"sv},
    {"xz file", 0,
     "\xFD"
     "7zXZ\0"sv},
    {"bzip2 file", 0, "BZh"sv},
    {"zstd file", 0, "\x28\xB5\x2F\xFD"sv},
    {"zstd file", 1, "\x2A\x4D\x18"sv},  // after a skippable frame
    {"lz4 file", 0, "\x04\x22\x4D\x18"sv},
    {"lz4 file", 0, "\x02\x21\x4C\x18"sv},  // the legacy form
    {"RAR archive", 0, "Rar!\x1A\x07"sv},
    {"tar archive", 257, "ustar"sv},
};
// Endings of files that are pickles, or that are zips or legacy torch files with pickles.
constexpr std::array kPickleNames = {".pkl"sv, ".pickle"sv, ".pt"sv,      ".pth"sv,
                                     ".bin"sv, ".ckpt"sv,   ".joblib"sv,  ".distcp"sv,
                                     ".p"sv,   ".dat"sv,    ".metadata"sv};

template <size_t N>
std::optional<std::string_view> match(const Signature (&table)[N], std::string_view head) {
  for (const Signature& signature : table) {
    if (head.size() > signature.offset &&
        head.substr(signature.offset).starts_with(signature.bytes)) {
      return signature.name;
    }
  }
  return std::nullopt;
}

// Checks RFC 1950: the header is valid, and the first bytes can be inflated.
bool is_zlib(std::string_view head) {
  if (head.size() < 2 || (head[0] & 0x0F) != Z_DEFLATED) return false;
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return false;
  std::array<Bytef, kFormHead> out{};
  std::string in(head);
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::inflate(&stream, Z_SYNC_FLUSH);
  ::inflateEnd(&stream);
  return status == Z_STREAM_END || (status == Z_OK && stream.total_out > 0);
}

// The predecessor of xz: properties, the dictionary's size, the content's size (lzma.FORMAT_ALONE).
bool is_lzma(std::string_view head) {
  constexpr uint64_t kMostContent = uint64_t{1} << 40;
  if (head.size() < 13 || static_cast<unsigned char>(head[0]) >= 9 * 5 * 5) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(head.data());
  const auto dictionary = load_le<uint32_t>(bytes + 1);
  const auto content = load_le<uint64_t>(bytes + 5);
  // liblzma accepts 2^n and 2^n + 2^(n-1) (lzma_alone_decoder).
  const uint32_t rest = dictionary & (dictionary - 1);
  const bool is_size = dictionary == ~uint32_t{0} ||
                       (dictionary >= 1 << 12 && (rest == 0 || (dictionary ^ rest) == rest >> 1));
  return is_size && (content == ~uint64_t{0} || content < kMostContent);
}

}  // namespace

std::optional<std::string_view> container_of(std::string_view head, bool may_be_any) {
  if (const auto container = match(kContainers, head)) return container;
  if (!may_be_any) return std::nullopt;
  if (is_tar(head)) return "tar archive";
  if (is_zlib(head)) return "zlib stream";
  if (is_lzma(head)) return "lzma file";
  return std::nullopt;
}

bool is_named_as_pickle(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kPickleNames.begin(), kPickleNames.end(),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

bool is_text(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x80 || std::isprint(byte) != 0 || std::isspace(byte) != 0;
  });
}

bool has_pickle_header(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && static_cast<unsigned char>(head[1]) <= 8;
}

bool is_like_safetensors(const ByteSource& source, std::string_view head) {
  return head.size() > 8 && head[8] == '{' &&
         load_le<uint64_t>(reinterpret_cast<const std::byte*>(head.data())) <= source.size() - 8;
}

std::string safetensors_problem(const InputFile& file) {
  if (!datastates_pickles(file).empty()) return "";
  try {
    InputFiles files;
    SafetensorsFile::open(files, files.add_again(file.path(), file.display()));
    return "";
  } catch (const CorruptError& error) {
    return "a broken safetensors file: " + error.message();
  } catch (const UnsupportedError&) {
    return "";
  }
}

}  // namespace dsckpt
