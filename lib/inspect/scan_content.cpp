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
#include "base/kernels.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "format/foreign_file.h"
#include "format/torch_form.h"
#include "format/zip.h"
#include "format/zip_records.h"
#include "inspect/npy_header.h"
#include "inspect/pickle_judge.h"
#include "inspect/scan_forms.h"
#include "io/file_source.h"
#include "pickle/pickle.h"
#include "pickle/trace.h"

namespace dsckpt {
namespace {

using namespace std::literals;
using pickle::NamedGlobal;
using pickle::Trace;

constexpr uint64_t kHead = kFormHead;
constexpr int kMaxZipNesting = 4;
constexpr uint64_t kMaxPickles = 10000;  // in a row
constexpr size_t kTorchPickles = 5;      // of a legacy torch file, before its storages
constexpr size_t kObject = 3;            // index of the pickle with the tensors
constexpr size_t kKeys = 4;              // index of the pickle with the list of storages
constexpr uint64_t kMaxInflated = uint64_t{64} << 20;
// Limits the parsed and inflated bytes of a file, besides some times its size: DCP's ranges can
// overlap.
constexpr uint64_t kMaxWork = uint64_t{1} << 30;
constexpr uint64_t kMaxWorkRatio = 4;
constexpr uint64_t kWindow = uint64_t{1} << 20;
// Values take many times the bytes of their pickle, and a deflated pickle many times those of the
// file.
constexpr uint64_t kMaxDeflatedPickle = uint64_t{512} << 10;
// Limits for a broken zip: the records to look for, and the bytes of each.
constexpr int kMaxFoundRecords = 10000;
constexpr uint64_t kMaxFound = uint64_t{4} << 20;
// A memo index from here on counts even if the bytes are not a pickle. An unpickler would need
// hundreds of times the file's size in memory.
constexpr uint64_t kFarIndex = uint64_t{1} << 22;

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
  if (global.uses != 0 || global.attributes.empty()) return pickle::to_strings(global.uses);
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

// Returns why bytes that are not a pickle could do harm, or "". They are harmless if every
// unpickler fails before they name anything. Module names have no characters but those of
// is_dotted_name(). Names made at run time need a call of another name. Extension codes affect only
// programs that registered some.
std::string harm_of(const Trace& trace, bool counts_memory) {
  for (const NamedGlobal& global : trace.globals) {
    if (global.offset < trace.died && global.form == NamedGlobal::Form::name &&
        is_dotted_name(global.module) && !global.name.empty()) {
      return "begins like a pickle, which names " + display_of(global);
    }
  }
  if (trace.died == Trace::kNowhere && trace.whole() && !trace.globals.empty()) {
    return "is a pickle, which names " + display_of(trace.globals.front());
  }
  if (trace.died == Trace::kNowhere && trace.is_cut) return trace.problem;
  if (counts_memory && trace.far_index > kFarIndex) {
    return "begins like a pickle, whose memo has " + counted(trace.far_index, "place");
  }
  return "";
}

// Returns whether the traced bytes may continue, since an unpickler would not fail in them.
bool may_go_on(const Trace& trace) {
  return trace.died == Trace::kNowhere || (trace.is_truncated && trace.died == trace.end);
}

struct Inflated {
  std::vector<std::byte> bytes;
  bool is_whole = false;  // the stream ends at the end of its bytes
};

// Inflates a raw deflate stream to at most `most` bytes.
Inflated inflate(const ByteSource& source, uint64_t most) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return {};
  Inflated out;
  int status = Z_OK;
  uint64_t at = 0;
  while (status == Z_OK && out.bytes.size() < most) {
    std::vector<std::byte> input;
    if (stream.avail_in == 0) {
      input = source.read(at, kWindow);
      if (input.empty()) break;
      at += input.size();
      stream.next_in = reinterpret_cast<Bytef*>(input.data());
      stream.avail_in = static_cast<uInt>(input.size());
    }
    while (status == Z_OK && out.bytes.size() < most) {
      const size_t begin = out.bytes.size();
      const uint64_t room = std::min(std::max<uint64_t>(begin, kHead), most - begin);
      out.bytes.resize(begin + static_cast<size_t>(room));
      stream.next_out = reinterpret_cast<Bytef*>(out.bytes.data() + begin);
      stream.avail_out = static_cast<uInt>(room);
      status = ::inflate(&stream, Z_NO_FLUSH);
      out.bytes.resize(out.bytes.size() - stream.avail_out);
      if (stream.avail_out != 0) break;
    }
    if (status == Z_BUF_ERROR) status = Z_OK;
    if (stream.avail_in != 0 && status == Z_OK && out.bytes.size() < most) break;
  }
  out.is_whole = status == Z_STREAM_END && at == source.size() && stream.avail_in == 0;
  ::inflateEnd(&stream);
  return out;
}

// A file, a record, or a part of one, to be scanned.
struct Part {
  ByteSource source;
  std::string record = {};  // "": the whole file
  // The part's range in the file, unless it is compressed.
  std::optional<Extent> extent = {};
  bool is_expected = false;  // to be a pickle, or to contain pickles
  bool is_torch = false;     // a pickle of torch's zips, with persistent ids
  bool is_cut = false;       // more bytes follow, which are unknown
  bool is_deflated = false;  // compressed in the file
  uint64_t base = 0;         // added to all offsets

  bool is_file() const { return record.empty(); }
};

class ContentScanner {
 public:
  ContentScanner(const InputFile& file, ScanResult& result)
      : input_(file),
        file_(file.display()),
        result_(result),
        budget_(kMaxWork + kMaxWorkRatio * file.size()) {}

  // Returns true if the file consists of `items` only, each a whole zip, and a reader of the whole
  // file would find no other directory. Names that several items share are kept once.
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

  // Scans the whole file, and known structures in it.
  void scan_file() {
    const ByteSource source = source_of(input_);
    scan({.source = source,
          .extent = Extent{0, 0, input_.size()},
          .is_expected = is_named_as_pickle(file_)});
    find_hidden_zip(source);
    for (const uint64_t at : datastates_pickles(input_)) {
      scan({.source = source.from(at), .record = "datastates_metadata.pkl", .is_expected = true});
    }
  }

 private:
  void add_unreadable(const std::string& record, const std::string& reason) {
    result_.unreadable.push_back({file_, record, reason, GlobalClass::unknown});
  }
  void refuse(const std::string& record, const std::string& reason) {
    result_.unreadable.push_back({file_, record, reason, GlobalClass::dangerous});
  }
  static std::string placed(const Error& error) {
    const std::optional<uint64_t> at = error.where().offset;
    return (at ? "at " + std::to_string(*at) + ": " : "") + error.message();
  }
  void refuse_zip(const Part& part, const Error& error) {
    const std::string& member = error.where().member;
    refuse(member.empty() ? part.record : inside(part.record, member),
           "a broken zip: " + error.message());
    explain_zip(part);
  }

  // Returns false if the file's work is used up, and reports that once.
  bool spend(const std::string& record, uint64_t bytes) {
    if (bytes <= budget_) {
      budget_ -= bytes;
      return true;
    }
    if (!is_spent_) refuse(record, "too much to look through");
    is_spent_ = true;
    return false;
  }

  void add(const std::string& record, const NamedGlobal& global, GlobalClass danger,
           uint64_t offset, std::string reason = {}) {
    ScanFinding finding{danger, display_of(global), uses_of(global),  file_, record,
                        offset, global.form,        std::move(reason)};
    if (in_items_ && danger == GlobalClass::harmless &&
        !known_.emplace(finding.global, finding.uses).second) {
      return;
    }
    result_.findings.push_back(std::move(finding));
  }

  // Content.

  void scan(const Part& part) {
    const std::vector<std::byte> bytes = part.source.read(0, kHead);
    const std::string_view head = as_text(bytes);
    if (head.starts_with("PK\3\4"sv) || head.starts_with("PK\5\6"sv)) {
      scan_zip(part);
      return;
    }
    if (head.starts_with("\x93NUMPY"sv)) return scan_numpy(part);
    // Some storages and texts begin like these containers by chance, unless the form is certain.
    if (const auto container = container_of(head, part.is_file() || part.is_expected)) {
      return add_unreadable(part.record, std::string(*container));
    }
    // Some readers of tars skip invalid blocks.
    if (part.is_file() && is_tar(as_text(part.source.read(kHead, kHead)))) {
      return add_unreadable(part.record, "tar archive behind another block");
    }
    const bool is_safetensors = is_like_safetensors(part.source, head);
    const bool is_sure = has_pickle_header(head) && (part.is_file() || part.is_expected);
    if (scan_pickles(part, head, is_sure && !is_safetensors)) return;
    if (is_safetensors && part.is_file()) {
      if (const std::string problem = safetensors_problem(input_); !problem.empty()) {
        add_unreadable(part.record, problem);
      }
    } else if (part.is_expected && !head.empty() && !is_text(head)) {
      add_unreadable(part.record, "of no form known here");
    }
  }

  // Scans consecutive pickles. Returns false if there are none. `is_sure`: a loader takes the part
  // for one.
  bool scan_pickles(const Part& part, std::string_view head, bool is_sure) {
    const bool is_torch = torch_form(head) == TorchForm::pickles;
    if (!is_sure && !is_torch && is_nothing(part, head)) return false;
    bool is_pickle = is_sure;
    std::vector<Judgement> judged;
    uint64_t at = 0;
    for (uint64_t count = 0; at < part.source.size(); ++count) {
      if (judged.size() == kTorchPickles) break;
      if (count == kMaxPickles) {
        refuse(part.record, "more than " + counted(kMaxPickles, "pickle"));
        return true;
      }
      try {
        Judgement next = judge_at(part, at, is_torch && count == kObject);
        is_pickle = is_pickle || is_torch || !next.globals.empty() || !next.problems.empty() ||
                    (part.is_expected && !is_text(head));
        if (is_pickle) report(part, next);
        at += next.end;
        if (is_torch) judged.push_back(std::move(next));
      } catch (const IoError&) {
        throw;
      } catch (const Error& error) {
        return explain(part, at, is_pickle, error);
      }
    }
    if (judged.size() == kTorchPickles) {
      check_storages(part, at, judged[kObject].storages, judged[kKeys].keys);
    } else if (is_torch) {
      refuse(part.record, "ends before the pickles of torch do");
    }
    return is_pickle;
  }

  // Returns whether unpicklers certainly fail in the first bytes before they do anything.
  bool is_nothing(const Part& part, std::string_view head) const {
    const Trace start = pickle::trace(ByteSource(as_byte_span(head)));
    return !may_go_on(start) && harm_of(start, part.is_file()).empty();
  }

  Judgement judge_at(const Part& part, uint64_t at, bool is_torch_object) {
    const ByteSource rest = part.source.from(at);
    const uint64_t base = part.base + at;
    const uint64_t most = pickle::Limits().max_bytes;
    const uint64_t size =
        rest.size() <= kWindow ? rest.size() : pickle::length(rest.part(0, most), base);
    if (!spend(part.record, size)) throw CorruptError({.offset = base}, "is not looked at");
    const std::vector<std::byte> bytes = rest.read(0, size);
    return judge(bytes, part.is_torch || is_torch_object ? PickleOf::torch : PickleOf::anybody,
                 input_.size(), base);
  }

  void report(const Part& part, Judgement& judged) {
    ++result_.pickles;
    if (part.is_deflated && judged.end > kMaxDeflatedPickle &&
        judged.end > kMaxWorkRatio * input_.size()) {
      refuse(part.record, "a pickle of " + counted(judged.end, "byte") + " that was compressed");
    }
    for (const JudgedGlobal& global : judged.globals) {
      add(part.record, global.named, classify(global), global.named.offset, global.problem);
    }
    for (const std::string& problem : judged.problems) refuse(part.record, problem);
    if (part.is_torch) claims_ = std::move(judged.storages);
    // Programs unpickle these bytes again.
    if (nesting_ >= kMaxZipNesting) return;
    ++nesting_;
    for (const InnerBytes& inner : judged.inner) {
      scan({.source = ByteSource(as_byte_span(inner.bytes)),
            .record = inside(part.record, "bytes at " + std::to_string(inner.offset))});
    }
    --nesting_;
  }

  // Decides whether bytes that no pickler writes are dangerous, and reports the reason.
  bool explain(const Part& part, uint64_t at, bool is_pickle, const Error& error) {
    const Trace trace = pickle::trace(part.source.from(at));
    const std::string harm = harm_of(trace, part.is_file());
    const bool is_unknown = part.is_cut && may_go_on(trace);
    if (!is_pickle && harm.empty() && !is_unknown) return false;
    if (at > 0 && is_pickle && harm.empty()) {
      refuse(part.record, counted(part.source.size() - at, "byte") + " after the pickle");
      return true;
    }
    ++result_.pickles;
    for (const NamedGlobal& global : trace.globals) {
      add(part.record, global, classify(global), part.base + at + global.offset);
    }
    const std::string why =
        trace.is_truncated
            ? "at " + std::to_string(part.base + at + trace.end) + ": " + trace.problem
            : placed(error);
    if (part.is_cut) {
      refuse(part.record, "a compressed record that is too large to look through");
    } else if (is_pickle || trace.whole()) {
      refuse(part.record, why);
    } else {
      // A name that is never used may come from a list of words.
      const bool is_run =
          trace.globals.empty() ||
          std::any_of(trace.globals.begin(), trace.globals.end(), [](const NamedGlobal& global) {
            return (global.uses & ~unsigned{pickle::kNamed}) != 0;
          });
      result_.unreadable.push_back({file_, part.record, harm + "; " + why,
                                    is_run ? GlobalClass::dangerous : GlobalClass::unknown});
    }
    return true;
  }

  // torch/serialization.py, _legacy_load: the storages follow the pickles, each after its number of
  // elements.
  void check_storages(const Part& part, uint64_t at, const std::vector<ClaimedStorage>& claims,
                      const std::vector<std::string>& keys) {
    KeyedMap<std::string, const ClaimedStorage*> known;
    for (const ClaimedStorage& claim : claims) known.emplace(claim.key, &claim);
    for (const std::string& key : keys) {
      const auto found = known.find(key);
      if (found == known.end()) {
        return refuse(part.record, "storage " + key + " belongs to no tensor");
      }
      const ClaimedStorage& storage = *found->second;
      const std::vector<std::byte> count = part.source.read(at, sizeof(int64_t));
      const bool is_there = count.size() == sizeof(int64_t) &&
                            part.source.size() - at - sizeof(int64_t) >= storage.bytes;
      if (!is_there) return refuse(part.record, "storage " + key + " is not all there");
      if (load_le<uint64_t>(count.data()) != storage.bytes / storage.item) {
        return refuse(part.record,
                      "storage " + key + " has a different size than its tensors give");
      }
      at += sizeof(int64_t) + storage.bytes;
      known.erase(found);
    }
    if (!known.empty()) {
      return refuse(part.record, "storage " + known.begin()->first + " is not there");
    }
    if (at != part.source.size()) {
      refuse(part.record, counted(part.source.size() - at, "byte") + " after the last storage");
    }
  }

  void scan_numpy(const Part& part) {
    const NpyHeader header = npy_header(part.source);
    Part data = part;
    data.extent.reset();
    data.base = part.base + header.size;
    data.source = part.source.from(header.size);
    if (header.data) {
      data.is_expected = false;
      Part rest = data;
      if (*header.data > data.source.size() && !part.is_cut) {
        add_unreadable(part.record, "a NumPy array that is cut off");
      }
      scan_pickles(data, as_text(data.source.read(0, kHead)), false);
      rest.base += *header.data;
      rest.source = rest.source.from(*header.data);
      if (rest.source.size() > 0) scan(rest);
      return;
    }
    const std::vector<std::byte> head = data.source.read(0, kHead);
    if (head.empty() || !scan_pickles(data, as_text(head), true)) {
      refuse(part.record, "a NumPy array that may have objects, without its pickle");
    }
  }

  // Zips.

  static std::string inside(const std::string& outer, const std::string& name) {
    return outer.empty() ? name : outer + " > " + name;
  }

  // Returns false unless all readers understand the zip alike.
  bool scan_zip(const Part& part) {
    if (part.is_file()) is_zip_ = true;
    if (!part.extent || nesting_ >= kMaxZipNesting) {
      add_unreadable(part.record, "a zip in compressed data, or nested too deep");
      return false;
    }
    bool is_whole = true;
    ++nesting_;
    try {
      const ZipReader zip =
          ZipReader::open(input_, *part.extent, ZipReader::Records::stored_or_deflated);
      if (!spend(part.record, zip.entries().size() * zip::kCentralSize)) return false;
      uint64_t directory = part.extent->offset;  // begins after the last record
      for (const ZipEntry& entry : zip.entries()) {
        is_whole = scan_record(part, zip, entry) && is_whole;
        directory = std::max(directory, entry.limit);
      }
      directories_[directory] = part.extent->offset;
    } catch (const IoError&) {
      throw;
    } catch (const Error& error) {
      is_whole = false;
      refuse_zip(part, error);
    }
    --nesting_;
    return is_whole;
  }

  bool scan_record(const Part& zip_part, const ZipReader& zip, const ZipEntry& entry) {
    const std::string name(entry.name);
    Part record{.source = ByteSource(ByteSpan()),
                .record = inside(zip_part.record, name),
                .is_expected = is_named_as_pickle(name),
                .is_torch = name.ends_with(".pkl")};
    std::vector<std::byte> bytes;
    try {
      const Extent data = zip.data(entry);
      record.source = source_of(input_).part(data.offset, data.size);
      if (!entry.is_deflated()) record.extent = data;
    } catch (const CorruptError& error) {
      refuse_zip(zip_part, error);
      return false;
    }
    if (entry.is_deflated()) {
      Inflated data = inflate(record.source, kMaxInflated);
      if (!spend(record.record, data.bytes.size())) return false;
      bytes = std::move(data.bytes);
      record.is_cut = !data.is_whole && bytes.size() == kMaxInflated;
      if (!record.is_cut &&
          (!data.is_whole || bytes.size() != entry.size || crc32(0, bytes) != entry.crc32)) {
        refuse(record.record, "a compressed record that is broken");
      }
      record.source = ByteSource(ByteSpan(bytes));
      record.is_deflated = true;
    }
    claims_.clear();
    scan(record);
    return check_claims(zip, name, record.record);
  }

  // Checks that torch's zip has a record of the right size for each storage.
  bool check_claims(const ZipReader& zip, const std::string& name, const std::string& record) {
    for (const ClaimedStorage& claim : std::exchange(claims_, {})) {
      const std::string wanted = name.substr(0, name.size() - ".pkl"sv.size()) + "/" + claim.key;
      const ZipEntry* entry = zip.find(wanted);
      if (entry != nullptr && entry->size == claim.bytes) continue;
      refuse(record, "at " + std::to_string(claim.offset) + ": a storage of " +
                         counted(claim.bytes, "byte") + ", and " +
                         (entry == nullptr ? "no record of it"
                                           : "a record of " + std::to_string(entry->size)));
      return false;
    }
    return true;
  }

  // Reports the names in records that readers could find in a broken zip by local headers alone.
  void explain_zip(const Part& part) {
    constexpr std::string_view kSignature = "PK\3\4"sv;
    int found = 0;
    if (!explained_.insert(part.record).second || !spend(part.record, part.source.size())) return;
    for (uint64_t at = 0; at < part.source.size(); at += kWindow) {
      const std::vector<std::byte> window = part.source.read(at, kWindow + kSignature.size() - 1);
      const std::string_view text = as_text(window);
      for (size_t hit = text.find(kSignature); hit != std::string_view::npos;
           hit = text.find(kSignature, hit + 1)) {
        if (++found > kMaxFoundRecords) return;
        explain_record(part.source.from(at + hit), part.record);
      }
    }
  }

  // `source` begins with a local header, or with the same bytes by chance (APPNOTE 4.3.7).
  void explain_record(const ByteSource& source, const std::string& zip) {
    const std::vector<std::byte> header = source.read(0, zip::kLocalSize);
    if (header.size() < zip::kLocalSize) return;
    const auto method = load_le<uint16_t>(header.data() + 8);
    const auto name_size = load_le<uint16_t>(header.data() + 26);
    const auto extra_size = load_le<uint16_t>(header.data() + 28);
    const std::vector<std::byte> name =
        source.read(zip::kLocalSize, std::min<uint64_t>(name_size, zip::kMaxName));
    const std::string record = inside(zip, std::string(as_text(name)));
    ByteSource data = source.from(zip::kLocalSize + name_size + extra_size).part(0, kMaxFound);
    Inflated made;
    if (method == zip::kDeflated) {
      made = inflate(data, kMaxFound);
      data = ByteSource(ByteSpan(made.bytes));
    }
    if (!spend(zip, kHead + made.bytes.size())) return;
    const Trace trace = pickle::trace(data);
    if (harm_of(trace, false).empty()) return;
    ++result_.pickles;
    for (const NamedGlobal& global : trace.globals) {
      add(record, global, classify(global), global.offset);
    }
  }

  // Finds a zip after other bytes, as readers do that search for its directory at the end.
  void find_hidden_zip(const ByteSource& source) {
    if (is_zip_) return;
    constexpr uint64_t kReach = zip::kEndSize + 0xFFFF;
    const uint64_t begin = source.size() - std::min(source.size(), kReach);
    const std::vector<std::byte> tail = source.read(begin, kReach);
    const std::string_view text = as_text(tail);
    for (size_t found = text.find("PK\5\6"sv); found != std::string_view::npos;
         found = text.find("PK\5\6"sv, found + 1)) {
      if (!ends_directory(source, begin + found)) continue;
      refuse("", "a zip lies behind other bytes: readers could take either");
      return explain_zip({.source = source});
    }
  }

  // Returns whether a directory ends where this end record begins, or zip64's end records come
  // before it.
  static bool ends_directory(const ByteSource& source, uint64_t end) {
    const std::vector<std::byte> record = source.read(end, zip::kEndSize);
    if (record.size() < zip::kEndSize) return false;
    const auto size = load_le<uint32_t>(record.data() + 12);
    const auto stands_before = [&](uint64_t bytes, std::string_view signature) {
      return bytes <= end && as_text(source.read(end - bytes, 4)) == signature;
    };
    return stands_before(zip::kLocatorSize, "PK\6\7"sv) || stands_before(size, "PK\1\2"sv);
  }

  // Scans a part of the file as torch.load would read it. Returns whether it is a whole zip.
  bool scan_item(const DcpItem& item) {
    if (item.offset > input_.size() || item.size > input_.size() - item.offset) {
      refuse(item.name, "lies beyond the end of the file");
      return false;
    }
    const Part part{.source = source_of(input_).part(item.offset, item.size),
                    .record = item.name,
                    .extent = Extent{0, item.offset, item.size},
                    .is_expected = true};
    constexpr uint64_t kTail = zip::kEndSize + 0xFFFF;
    if (!spend(item.name, std::min(item.size, kTail))) return false;
    if (torch_form(as_text(part.source.read(0, kHead))) == TorchForm::zip) return scan_zip(part);
    scan(part);
    return false;
  }

  // torch counts a directory's offset from the start of the file, even if other bytes precede its
  // zip. Returns whether such an offset leads to a directory outside the scanned zips.
  bool has_other_directory() const {
    if (directories_.empty()) return false;
    const auto& [last, begin] = *directories_.rbegin();
    const uint64_t place = last - begin;
    return !directories_.contains(place) && as_text(source_of(input_).read(place, 4)) == "PK\1\2"sv;
  }

  const InputFile& input_;
  const std::string& file_;
  ScanResult& result_;
  uint64_t budget_;
  bool is_spent_ = false;
  bool is_zip_ = false;
  int nesting_ = 0;
  bool in_items_ = false;
  std::vector<ClaimedStorage> claims_;                                // of a record's pickle
  std::set<std::string> explained_;                                   // zips
  std::set<std::pair<std::string, std::vector<std::string>>> known_;  // harmless names in items
  // For zips that are parts of the file: the begin of the directory, and of the zip.
  std::map<uint64_t, uint64_t> directories_;
};

// Finds the items of a file that no `.metadata` describes: zips, one after the other.
std::vector<DcpItem> items_in_a_row(const InputFile& file) {
  std::vector<DcpItem> items;
  for (const Extent& zip : zips_in_a_row(file, 0)) {
    items.push_back({"at " + std::to_string(zip.offset), zip.offset, zip.size});
  }
  return items;
}

}  // namespace

// Scans part by part. If the parts do not account for the whole file, it is scanned as a whole.
void scan_content(const InputFile& file, const std::vector<DcpItem>& items, ScanResult& result) {
  bool is_whole = false;
  if (!items.empty() || file.display().ends_with(kDcpDataSuffix)) {
    ContentScanner scanner(file, result);
    is_whole = scanner.scan_items(items.empty() ? items_in_a_row(file) : items);
  }
  if (!is_whole) ContentScanner(file, result).scan_file();
  if (result.pickles == 0 && result.unreadable.empty()) result.not_examined = {file.display()};
}

}  // namespace dsckpt
