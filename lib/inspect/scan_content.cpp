#include "inspect/scan_content.h"

#include <zlib.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "format/foreign_file.h"
#include "format/torch_form.h"
#include "format/zip.h"
#include "format/zip_records.h"
#include "inspect/scan_forms.h"
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
// Bytes searched for records, beyond some times the file's size and what was inflated.
constexpr uint64_t kMaxSearch = uint64_t{4} << 20;
constexpr uint64_t kMaxSearchRatio = 4;
// What a record that is found is worth of that work, and what looking into it is.
constexpr uint64_t kWorkOfHeader = 1024;
constexpr uint64_t kWorkOfRecord = 4096;
constexpr uint64_t kSearchWindow = uint64_t{1} << 20;
constexpr uint64_t kFirstWindow = 4096;
constexpr size_t kMaxRecordName = 4096;

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

// Inflates a raw deflate stream: as much of it as is whole, and kMaxInflated at most. nullopt if
// that is nothing. `work` becomes the bytes that were read and made.
std::optional<std::vector<std::byte>> inflated(const ByteSource& source, uint64_t& work) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return std::nullopt;
  std::vector<std::byte> out;
  uint64_t at = 0;
  uint64_t window = kFirstWindow;  // most of what begins as a record is none
  int status = Z_OK;
  while (status == Z_OK && out.size() < kMaxInflated) {
    std::vector<std::byte> input = source.read(at, window);
    if (input.empty()) break;
    at += input.size();
    stream.next_in = reinterpret_cast<Bytef*>(input.data());
    stream.avail_in = static_cast<uInt>(input.size());
    while (status == Z_OK && out.size() < kMaxInflated) {
      const size_t begin = out.size();
      const uint64_t room = std::min(window, kMaxInflated - begin);
      out.resize(begin + room);
      stream.next_out = reinterpret_cast<Bytef*>(out.data() + begin);
      stream.avail_out = static_cast<uInt>(room);
      status = ::inflate(&stream, Z_NO_FLUSH);
      out.resize(out.size() - stream.avail_out);
      if (stream.avail_out != 0) break;
      window = std::min(2 * window, kSearchWindow);
    }
    window = std::min(2 * window, kSearchWindow);
    if (status == Z_BUF_ERROR) status = Z_OK;
  }
  ::inflateEnd(&stream);
  work = at + out.size();
  if (status != Z_STREAM_END && out.empty()) return std::nullopt;
  return out;
}

class ContentScanner {
 public:
  ContentScanner(const InputFile& file, ScanResult& result)
      : input_(file),
        file_(file.display()),
        result_(result),
        budget_(kMaxWork + kMaxWorkRatio * file.size()),
        search_budget_(kMaxSearch + kMaxSearchRatio * file.size()) {}

  // True if there is nothing in the file but `items`, each a whole zip, and no reader that takes it
  // for one zip finds another directory in it. What all of them name alike is kept once.
  bool scan_items(const std::vector<DcpItem>& items) {
    in_items_ = true;
    uint64_t end = 0;
    bool is_whole = true;
    for (const DcpItem& item : items) {
      const bool is_zip = scan_item(item);
      is_whole = is_whole && is_zip && item.offset == end;
      end = item.offset + item.size;
    }
    in_items_ = false;
    return is_whole && end == input_.size() && !has_other_directory();
  }

  // Scans `source`, which is called `record` in the file ("": it is the file) and is `expected` to
  // be a pickle. `in_search`: its end is not known.
  void scan(const ByteSource& source, const std::string& record, bool expected,
            bool in_search = false) {
    const std::vector<std::byte> bytes = source.read(0, kHead);
    const std::string_view head = as_text(bytes);
    if (head.starts_with("PK\3\4"sv) || head.starts_with("PK\5\6"sv)) {
      return scan_zip(source, record);
    }
    if (head.starts_with("\x93NUMPY"sv)) return scan_numpy(source, record, head);
    // Of storages and texts some begin like the less certain ones by chance.
    if (const auto container = container_of(head, record.empty() || expected)) {
      return add_unreadable(record, std::string(*container));
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
  bool spend(const std::string& record, uint64_t bytes) { return spend(record, bytes, budget_); }

  bool spend(const std::string& record, uint64_t bytes, uint64_t& budget) {
    if (bytes <= budget) {
      budget -= bytes;
      return true;
    }
    if (!is_spent_) add_too_much(record);
    is_spent_ = true;
    return false;
  }

  void add_too_much(const std::string& record) {
    add_unreadable(record, "too much to look through");
  }

  void add_findings(const Trace& trace, const std::string& record, uint64_t base) {
    ++result_.pickles;
    for (const NamedGlobal& global : trace.globals) {
      ScanFinding finding{classify(global), display_of(global),   uses_of(global), file_,
                          record,           base + global.offset, global.form};
      if (in_items_ && finding.danger == GlobalClass::harmless &&
          !known_.emplace(finding.global, finding.uses).second) {
        continue;
      }
      result_.findings.push_back(std::move(finding));
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
        if (may_go_on) add_unreadable(record, "more than " + counted(count, "pickle"));
        return may_go_on;
      }
      const bool is_sure = starts_surely && !(is_torch && count >= kTorchPickles);
      const Trace trace = pickle::trace(source.from(at), expected_calls());
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
          add_unreadable(record, counted(source.size() - at, "byte") + " after the pickle");
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
        scan(source.part(data.offset, data.size), std::string(entry.name),
             is_named_as_pickle(entry.name));
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

  // What torch.load makes of a part of the file. True if that is a whole zip.
  bool scan_item(const DcpItem& item) {
    if (item.offset > input_.size() || item.size > input_.size() - item.offset) {
      add_unreadable(item.name, "lies beyond the end of the file");
      return false;
    }
    const ByteSource source = source_of(input_).part(item.offset, item.size);
    const std::vector<std::byte> head = source.read(0, kHead);
    if (torch_form(as_text(head)) == TorchForm::zip) {
      try {
        scan_part({0, item.offset, item.size}, item.name);
        return true;
      } catch (const IoError&) {
        throw;
      } catch (const Error& error) {
        search_zip(source, item.name);
        add_unreadable(item.name, "a broken zip: " + error.message());
        return false;
      }
    }
    scan(source, item.name, true);
    return false;
  }

  // A zip that is a part of the file.
  void scan_part(const Extent& part, const std::string& name) {
    constexpr uint64_t kTail = zip::kEndSize + 0xFFFF;
    if (!spend(name, std::min(part.size, kTail))) return;
    const ZipReader zip = ZipReader::open(input_, part);
    if (!spend(name, zip.entries().size() * zip::kCentralSize)) return;
    uint64_t directory = part.offset;  // it begins where the last record ends
    for (const ZipEntry& entry : zip.entries()) {
      const Extent data = zip.data(entry);
      scan(source_of(input_).part(data.offset, data.size), inside(name, std::string(entry.name)),
           is_named_as_pickle(entry.name));
      directory = std::max(directory, entry.limit);
    }
    directories_[directory] = part.offset;
  }

  // torch counts the place of a directory from the start of a file, even if other bytes were put
  // before its zip: whether that leads to one that is not of the zips that were scanned.
  bool has_other_directory() const {
    if (directories_.empty()) return false;
    const auto& [last, begin] = *directories_.rbegin();
    const uint64_t place = last - begin;
    return !directories_.contains(place) && as_text(source_of(input_).read(place, 4)) == "PK\1\2"sv;
  }

  void restart(const ByteSource& source) {
    result_.findings.clear();
    result_.unreadable.clear();
    result_.pickles = 0;
    if (is_spent_) add_too_much("");
    search_zip(source, "");
  }

  // Finds the records by their local headers alone, wherever they are.
  void search_zip(const ByteSource& source, const std::string& record) {
    if (!spend(record, source.size(), search_budget_)) return;
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
    if (is_spent_ || !spend(zip, kWorkOfHeader)) return;
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
    if (!spend(record, kWorkOfRecord)) return;
    if (method == 8) {
      uint64_t work = 0;
      const auto bytes = inflated(data, work);
      const bool is_cut = !bytes || bytes->size() >= kMaxInflated;
      if (is_cut && (is_expected || (bytes && has_pickle_header(as_text(*bytes))))) {
        add_unreadable(record, "a compressed record that is broken or too large");
      }
      if (!spend(record, work) || !bytes) return;
      search_budget_ += bytes->size();
      return scan(ByteSource(ByteSpan(*bytes)), record, is_expected, is_cut);
    }
    const std::vector<std::byte> start = data.read(0, 4);
    if (as_text(start) == "PK\3\4"sv) return;  // the search comes by it
    const bool is_size_known = size != 0 && size != zip::kMax32;
    scan(data, record, is_expected, true);
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
  uint64_t search_budget_;
  bool is_spent_ = false;
  bool is_zip_ = false;
  int nesting_ = 0;
  bool in_items_ = false;
  std::set<std::pair<std::string, std::vector<std::string>>> known_;  // harmless, of items
  // Of zips that are parts of the file: where their directories begin, and they themselves.
  std::map<uint64_t, uint64_t> directories_;
};

// Those of a file that nothing but its name tells: one zip after the other.
std::vector<DcpItem> items_in_a_row(const InputFile& file) {
  std::vector<DcpItem> items;
  for (const Extent& zip : zips_in_a_row(file, 0)) {
    items.push_back({"at " + std::to_string(zip.offset), zip.offset, zip.size});
  }
  return items;
}

// Part by part, and where that does not account for all of the file, as a whole.
void scan_parts_and_all(const InputFile& file, const std::vector<DcpItem>& items,
                        ScanResult& result) {
  const bool is_dcp = file.display().ends_with(kDcpDataSuffix);
  if (!items.empty() || is_dcp) {
    ContentScanner scanner(file, result);
    if (scanner.scan_items(items.empty() ? items_in_a_row(file) : items)) return;
  }
  ScanResult whole;
  ContentScanner scanner(file, whole);
  const ByteSource source = source_of(file);
  scanner.scan(source, "", is_named_as_pickle(file.display()));
  scanner.scan_hidden_zip(source);
  for (const uint64_t at : datastates_pickles(file)) {
    scanner.scan(source.from(at), "datastates_metadata.pkl", true);
  }
  result.pickles += whole.pickles;
  std::move(whole.findings.begin(), whole.findings.end(), std::back_inserter(result.findings));
  std::move(whole.unreadable.begin(), whole.unreadable.end(),
            std::back_inserter(result.unreadable));
}

}  // namespace

void scan_content(const InputFile& file, const std::vector<DcpItem>& items, ScanResult& result) {
  scan_parts_and_all(file, items, result);
  if (result.pickles == 0 && result.unreadable.empty()) result.not_examined = {file.display()};
}

}  // namespace dsckpt
