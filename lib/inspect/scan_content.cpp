#include "inspect/scan_content.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "dsckpt/error.h"
#include "format/foreign_file.h"
#include "format/torch_form.h"
#include "format/zip.h"
#include "format/zip_records.h"
#include "io/file_source.h"
#include "pickle/trace.h"

namespace dsckpt {
namespace {

using namespace std::literals;
using pickle::NamedGlobal;
using pickle::Trace;

constexpr uint64_t kHead = kFormHead;
constexpr int kMaxNesting = 4;
constexpr int kMaxPickles = 10000;  // in a row
constexpr int kTorchPickles = 5;    // of a legacy torch file, before its storages
constexpr int kMaxUnexpected = 16;  // that nothing says are pickles, and that name nothing
constexpr uint64_t kMaxInflated = uint64_t{64} << 20;
// Bytes traced and inflated for one file, beyond some times its size: records can overlap.
constexpr uint64_t kMaxWork = uint64_t{1} << 30;
constexpr uint64_t kMaxWorkRatio = 4;
constexpr uint64_t kSearchWindow = uint64_t{1} << 20;
constexpr size_t kMaxRecordName = 4096;

struct Signature {
  std::string_view name;
  size_t offset;
  std::string_view bytes;
};

// What pickles are wrapped in and is not unwrapped here.
constexpr Signature kContainers[] = {
    {"7z archive", 0, "7z\xBC\xAF\x27\x1C"sv},
    {"gzip file", 0, "\x1F\x8B\x08"sv},
    {"xz file", 0,
     "\xFD"
     "7zXZ\0"sv},
    {"bzip2 file", 0, "BZh"sv},
    {"zstd file", 0, "\x28\xB5\x2F\xFD"sv},
    {"lz4 file", 0, "\x04\x22\x4D\x18"sv},
    {"lz4 file", 0, "\x02\x21\x4C\x18"sv},  // the legacy form
    {"RAR archive", 0, "Rar!\x1A\x07"sv},
    {"tar archive", 257, "ustar"sv},
};
// Names of files that are pickles, or zips or legacy torch files with pickles in them.
constexpr std::array kPickleNames = {".pkl"sv,  ".pickle"sv, ".pt"sv,     ".pth"sv, ".bin"sv,
                                     ".ckpt"sv, ".joblib"sv, ".distcp"sv, ".p"sv,   ".dat"sv};

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

// RFC 1950: a header that fits, and a beginning that can be inflated.
bool is_zlib(std::string_view head) {
  if (head.size() < 2 || (head[0] & 0x0F) != Z_DEFLATED) return false;
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return false;
  std::array<Bytef, kHead> out{};
  std::string in(head);
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::inflate(&stream, Z_SYNC_FLUSH);
  ::inflateEnd(&stream);
  return status == Z_STREAM_END || (status == Z_OK && stream.total_out > 0);
}

// The form before xz: properties, the dictionary's size, the content's size (lzma.FORMAT_ALONE).
bool is_lzma(std::string_view head) {
  constexpr uint64_t kMostContent = uint64_t{1} << 40;
  if (head.size() < 13 || static_cast<unsigned char>(head[0]) >= 9 * 5 * 5) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(head.data());
  const auto dictionary = load_le<uint32_t>(bytes + 1);
  const auto content = load_le<uint64_t>(bytes + 5);
  // 2^n or 2^n + 2^(n-1), as liblzma takes it (lzma_alone_decoder).
  const uint32_t rest = dictionary & (dictionary - 1);
  const bool is_size = dictionary == ~uint32_t{0} ||
                       (dictionary >= 1 << 12 && (rest == 0 || (dictionary ^ rest) == rest >> 1));
  return is_size && (content == ~uint64_t{0} || content < kMostContent);
}

std::optional<std::string_view> container_of(std::string_view head) {
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

// PROTO and a number that a protocol may have.
bool has_pickle_header(std::string_view head) {
  return head.size() >= 2 && head[0] == '\x80' && static_cast<unsigned char>(head[1]) <= 8;
}

// A length, and a JSON object that it is the length of.
bool is_like_safetensors(const ByteSource& source, std::string_view head) {
  return head.size() > 8 && head[8] == '{' &&
         load_le<uint64_t>(reinterpret_cast<const std::byte*>(head.data())) <= source.size() - 8;
}

std::string display_of(const NamedGlobal& global) {
  switch (global.form) {
    case NamedGlobal::Form::extension:
      return "extension code " + global.name;
    case NamedGlobal::Form::persistent:
      return "<persistent id>";
    case NamedGlobal::Form::computed:
      return (global.module.empty() ? "<computed>" : global.module) + "." +
             (global.name.empty() ? "<computed>" : global.name);
    case NamedGlobal::Form::name:
      break;
  }
  return global.module + "." + global.name;
}

std::vector<std::string> uses_of(const NamedGlobal& global) {
  if (global.uses != 0 || global.attributes.empty()) {
    return pickle::to_strings(static_cast<pickle::Use>(global.uses));
  }
  std::vector<std::string> uses;
  for (const NamedGlobal::Attribute& attribute : global.attributes) {
    uses.push_back("getattr of " + attribute.module + "." + attribute.owner + "." + attribute.name);
  }
  return uses;
}

bool is_dotted_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c >= 0x80;
  });
}

// Bytes that are no pickle can begin as one, and then name something that is no name.
bool is_plausible(const NamedGlobal& global) {
  return global.form == NamedGlobal::Form::name && is_dotted_name(global.module) &&
         is_dotted_name(global.name);
}

// True if loading what was traced does something that is not known to be harmless. Of what is
// unknown a call counts, but not a name alone: texts can begin like one.
bool may_harm(const Trace& trace, bool only_plausible) {
  return std::any_of(trace.globals.begin(), trace.globals.end(), [&](const NamedGlobal& global) {
    if (only_plausible && !is_plausible(global)) return false;
    const GlobalClass danger = classify(global);
    return danger == GlobalClass::dangerous ||
           (danger == GlobalClass::unknown && (global.uses & ~pickle::kNamed) != 0);
  });
}

bool is_plausible(const Trace& trace) {
  return !trace.globals.empty() &&
         std::all_of(trace.globals.begin(), trace.globals.end(),
                     [](const NamedGlobal& global) { return is_plausible(global); });
}

// Inflates a raw deflate stream: as much of it as is whole, and about kMaxInflated at most. nullopt
// if that is nothing.
std::optional<std::vector<std::byte>> inflated(const ByteSource& source) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return std::nullopt;
  std::vector<std::byte> out;
  uint64_t at = 0;
  int status = Z_OK;
  while (status == Z_OK && out.size() < kMaxInflated) {
    std::vector<std::byte> input = source.read(at, kSearchWindow);
    if (input.empty()) break;
    at += input.size();
    stream.next_in = reinterpret_cast<Bytef*>(input.data());
    stream.avail_in = static_cast<uInt>(input.size());
    while (status == Z_OK && out.size() < kMaxInflated) {
      const size_t begin = out.size();
      out.resize(begin + kSearchWindow);
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + begin);
      stream.avail_out = static_cast<uInt>(kSearchWindow);
      status = ::inflate(&stream, Z_NO_FLUSH);
      out.resize(out.size() - stream.avail_out);
      if (stream.avail_out != 0) break;
    }
    if (status == Z_BUF_ERROR) status = Z_OK;
  }
  ::inflateEnd(&stream);
  if (status != Z_STREAM_END && out.empty()) return std::nullopt;
  return out;
}

class ContentScanner {
 public:
  ContentScanner(const InputFile& file, ScanResult& result)
      : input_(file),
        file_(file.display()),
        result_(result),
        budget_(kMaxWork + kMaxWorkRatio * file.size()) {}

  // Scans `source`, which is called `record` in the file ("": it is the file). `in_search`: its end
  // is not known.
  void scan(const ByteSource& source, const std::string& record, bool in_search = false) {
    const std::vector<std::byte> bytes = source.read(0, kHead);
    const std::string_view head = as_text(bytes);
    const bool expected = is_named_as_pickle(record.empty() ? file_ : record);
    if (head.starts_with("PK\3\4"sv) || head.starts_with("PK\5\6"sv)) {
      return scan_zip(source, record);
    }
    if (head.starts_with("\x93NUMPY"sv)) return scan_numpy(source, record, head);
    if (const auto container = match(kContainers, head)) {
      return add_unreadable(record, std::string(*container));
    }
    // Of storages and texts some begin like these by chance.
    if (record.empty() || expected) {
      if (const auto container = container_of(head)) {
        return add_unreadable(record, std::string(*container));
      }
    }
    if (scan_pickles(source, record, head, expected, in_search)) return;
    if (expected && !in_search && !head.empty() && !is_text(head) &&
        !is_like_safetensors(source, head)) {
      add_unreadable(record, "of no form known here");
    }
  }

  // A zip behind something else: readers that look for the directory at the end find it.
  void scan_hidden_zip(const ByteSource& source) {
    if (is_zip_) return;
    constexpr uint64_t kReach = zip::kEndSize + 0xFFFF;
    const uint64_t begin = source.size() - std::min(source.size(), kReach);
    const std::vector<std::byte> tail = source.read(begin, kReach);
    const std::string_view text = as_text(tail);
    bool has_directory = false;
    size_t found = text.find("PK\5\6"sv);
    if (found == std::string_view::npos) return;
    for (; found != std::string_view::npos; found = text.find("PK\5\6"sv, found + 1)) {
      has_directory = has_directory || ends_directory(source, begin + found);
    }
    search_zip(source, "");
    if (has_directory && result_.pickles > 0) {
      add_unreadable("", "a zip lies behind other bytes: readers could take either");
    }
  }

 private:
  void add_unreadable(const std::string& record, const std::string& reason) {
    result_.unreadable.push_back({file_, record, reason});
  }

  // False, and says so once, if more was done for this file than it is worth.
  bool spend(const std::string& record, uint64_t bytes) {
    if (bytes <= budget_) {
      budget_ -= bytes;
      return true;
    }
    if (!is_spent_) add_unreadable(record, "too much to look through");
    is_spent_ = true;
    return false;
  }

  void add_findings(const Trace& trace, const std::string& record, uint64_t base) {
    ++result_.pickles;
    for (const NamedGlobal& global : trace.globals) {
      result_.findings.push_back({classify(global), display_of(global), uses_of(global), file_,
                                  record, base + global.offset, global.form});
    }
  }

  // Pickles, one after the other, the first one at `base` of the record. False if these are none.
  // Where nothing says that a pickle is to be `expected`, it must look like one.
  bool scan_pickles(const ByteSource& source, const std::string& record, std::string_view head,
                    bool expected, bool in_search, uint64_t base = 0) {
    const bool is_torch = torch_form(head) == TorchForm::pickles;
    const bool starts_surely = expected || (record.empty() && has_pickle_header(head));
    bool is_pickle = false;
    uint64_t at = 0;
    for (int count = 0; at < source.size(); ++count) {
      if (count == (is_pickle ? kMaxPickles : kMaxUnexpected)) {
        const bool may_go_on = is_pickle || starts_surely;
        if (may_go_on) add_unreadable(record, "more than " + std::to_string(count) + " pickles");
        return may_go_on;
      }
      const bool is_sure = starts_surely && !(is_torch && count >= kTorchPickles);
      const Trace trace = pickle::trace(source.from(at), is_expected_call);
      if (!spend(record, trace.end)) return true;
      if (!trace.whole()) {
        const bool is_broken = count == 0 && is_sure && has_pickle_header(head) &&
                               (is_plausible(trace) || !is_like_safetensors(source, head));
        const bool is_cut = trace.is_cut && (is_sure || record.empty());
        if (is_broken || is_cut || may_harm(trace, !is_sure)) {
          add_findings(trace, record, base + at);
          add_unreadable(record,
                         "at " + std::to_string(base + at + trace.end) + ": " + trace.problem);
          return true;
        }
        // Behind the pickles of a legacy torch file lie its storages.
        if (is_pickle && !is_torch && !in_search) {
          add_unreadable(record, std::to_string(source.size() - at) + " bytes after the pickle");
        }
        return is_pickle;
      }
      const bool is_header = has_pickle_header(as_text(source.read(at, 2)));
      if (is_plausible(trace) || may_harm(trace, !is_sure) ||
          (is_sure && (is_header || !is_text(head)))) {
        is_pickle = true;
        add_findings(trace, record, base + at);
      }
      at += trace.end;
      if (in_search) return is_pickle;
    }
    return is_pickle;
  }

  // numpy/lib/format.py: a header that is a Python dict as text; an array of objects is a pickle.
  void scan_numpy(const ByteSource& source, const std::string& record, std::string_view head) {
    if (head.size() < 12) return add_unreadable(record, "a NumPy array that is cut off");
    const bool is_long = head[6] > 1;
    const auto* bytes = reinterpret_cast<const std::byte*>(head.data());
    const uint64_t length = is_long ? load_le<uint32_t>(bytes + 8) : load_le<uint16_t>(bytes + 8);
    const uint64_t begin = (is_long ? 12 : 10) + length;
    const std::vector<std::byte> header =
        source.read(is_long ? 12 : 10, std::min(length, kSearchWindow));
    const bool has_objects = as_text(header).find('O') != std::string_view::npos;
    const ByteSource data = source.from(begin);
    const std::vector<std::byte> start = data.read(0, kHead);
    const bool found = scan_pickles(data, record, as_text(start), has_objects, !has_objects, begin);
    if (has_objects && !found)
      add_unreadable(record, "a NumPy array of objects without its pickle");
  }

  // Whether a directory ends where this end record begins; if zip64's are before it, they say
  // where.
  static bool ends_directory(const ByteSource& source, uint64_t end) {
    const std::vector<std::byte> record = source.read(end, zip::kEndSize);
    if (record.size() < zip::kEndSize) return false;
    const auto size = load_le<uint32_t>(record.data() + 12);
    const auto stands_before = [&](uint64_t bytes, std::string_view signature) {
      return bytes <= end && as_text(source.read(end - bytes, 4)) == signature;
    };
    return stands_before(zip::kLocatorSize, "PK\6\7"sv) || stands_before(size, "PK\1\2"sv);
  }

  std::string inside(const std::string& zip, const std::string& name) const {
    return zip.empty() ? name : zip + " > " + name;
  }

  void scan_zip(const ByteSource& source, const std::string& record) {
    if (nesting_ >= kMaxNesting) return add_unreadable(record, "zips nested too deep");
    if (!record.empty()) return search_zip(source, record);
    is_zip_ = true;
    try {
      const ZipReader zip = ZipReader::open(input_, 0);
      for (const ZipEntry& entry : zip.entries()) {
        const Extent data = zip.data(entry);
        scan(source.part(data.offset, data.size), entry.name);
      }
    } catch (const IoError&) {
      throw;
    } catch (const UnsupportedError&) {
      restart(source);
    } catch (const Error& error) {
      restart(source);
      add_unreadable("", "a broken zip: " + error.message());
    }
  }

  void restart(const ByteSource& source) {
    result_.findings.clear();
    result_.unreadable.clear();
    result_.pickles = 0;
    search_zip(source, "");
  }

  // Finds the records by their local headers alone, wherever they are.
  void search_zip(const ByteSource& source, const std::string& record) {
    ++nesting_;
    constexpr std::string_view kSignature = "PK\3\4"sv;
    for (uint64_t at = 0; at < source.size(); at += kSearchWindow) {
      const std::vector<std::byte> window = source.read(at, kSearchWindow + kSignature.size() - 1);
      const std::string_view text = as_text(window);
      for (size_t hit = text.find(kSignature); hit != std::string_view::npos;
           hit = text.find(kSignature, hit + 1)) {
        scan_found_record(source.from(at + hit), record);
      }
    }
    --nesting_;
  }

  // `source` starts with a local header, or what looks like one (APPNOTE 4.3.7).
  void scan_found_record(const ByteSource& source, const std::string& zip) {
    if (is_spent_) return;
    const std::vector<std::byte> header = source.read(0, zip::kLocalSize);
    if (header.size() < zip::kLocalSize) return;
    const auto flags = load_le<uint16_t>(header.data() + 6);
    const auto method = load_le<uint16_t>(header.data() + 8);
    const auto size = load_le<uint32_t>(header.data() + 18);
    const auto name_size = load_le<uint16_t>(header.data() + 26);
    const auto extra_size = load_le<uint16_t>(header.data() + 28);
    if (name_size > kMaxRecordName) return;
    const std::vector<std::byte> name = source.read(zip::kLocalSize, name_size);
    const std::string record = inside(zip, std::string(as_text(name)));
    const ByteSource data = source.from(zip::kLocalSize + name_size + extra_size);
    const uint64_t found = result_.pickles;
    const bool is_expected = is_named_as_pickle(record);
    if (method == 8) {
      const auto bytes = inflated(data);
      const bool is_cut = !bytes || bytes->size() >= kMaxInflated;
      if (is_cut && (is_expected || (bytes && has_pickle_header(as_text(*bytes))))) {
        add_unreadable(record, "a compressed record that is broken or too large");
      }
      if (!bytes || !spend(record, bytes->size())) return;
      return scan(ByteSource(ByteSpan(*bytes)), record, is_cut);
    }
    const std::vector<std::byte> start = data.read(0, 4);
    if (as_text(start) == "PK\3\4"sv) return;  // the search comes by it
    const bool is_size_known = size != 0 && size != zip::kMax32;
    scan(data, record, true);
    if (result_.pickles > found || (is_size_known && size < 2)) return;
    // Of what is found inside other bytes, the name of the record may be anything.
    if (!is_expected && (name.empty() || !is_text(as_text(name)))) return;
    if ((flags & zip::kEncryptionFlags) != 0) return add_unreadable(record, "encrypted");
    if (method != 0) {
      add_unreadable(record, "compressed by method " + std::to_string(method));
    }
  }

  const InputFile& input_;
  const std::string& file_;
  ScanResult& result_;
  uint64_t budget_;
  bool is_spent_ = false;
  bool is_zip_ = false;
  int nesting_ = 0;
};

}  // namespace

void scan_content(const InputFile& file, ScanResult& result) {
  const ByteSource source = source_of(file);
  ContentScanner scanner(file, result);
  scanner.scan(source, "");
  scanner.scan_hidden_zip(source);
  for (const uint64_t at : datastates_pickles(file)) {
    scanner.scan(source.from(at), "datastates_metadata.pkl");
  }
  if (result.pickles == 0 && result.unreadable.empty()) result.not_examined = {file.display()};
}

}  // namespace dsckpt
