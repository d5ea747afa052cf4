#include "inspect/dcp_items.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "base/text.h"
#include "dsckpt/error.h"
#include "format/dcp_objects.h"
#include "pickle/pickle.h"

namespace dsckpt {
namespace {

using pickle::Kind;
using pickle::Value;

std::vector<DcpFile> items_of(const Value& root) {
  const Value storage_data =
      dcp::attributes_of(root, dcp::kMetadata, "Metadata").at("storage_data");
  if (!storage_data.is(Kind::dict)) throw CorruptError({}, "'storage_data' is not a dict");
  std::map<std::string, std::vector<DcpItem>> files;
  for (const auto& [key, value] : storage_data.as_dict().items) {
    const Value index = dcp::attributes_of(key, dcp::kMetadata, "MetadataIndex");
    const DcpPlace place = dcp::place_of(value);
    dcp::check_form(value);
    files[place.file].push_back({.name = std::string(index.at("fqn").as_string()),
                                 .offset = place.offset,
                                 .size = place.size});
  }
  std::vector<DcpFile> result;
  for (auto& [name, items] : files) {
    result.push_back({name, {}});
    merge_items(result.back().items, std::move(items));
  }
  return result;
}

}  // namespace

bool is_dcp_metadata(std::string_view filename) {
  if (!filename.ends_with(kDcpMetadataName)) return false;
  filename.remove_suffix(kDcpMetadataName.size());
  if (filename.empty()) return true;
  // "__RANK.metadata" is one rank's.
  return filename.starts_with("__") && is_digits(filename.substr(2));
}

std::vector<DcpFile> dcp_items(const InputFile& metadata) {
  return in_context({.file = metadata.display()}, [&] {
    const std::vector<std::byte> bytes = metadata.read(0, metadata.size());
    return items_of(pickle::Document::parse(bytes).root());
  });
}

void merge_items(std::vector<DcpItem>& items, std::vector<DcpItem> more) {
  const auto range = [](const DcpItem& item) { return std::tuple(item.offset, item.size); };
  items.insert(items.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  std::stable_sort(items.begin(), items.end(),
                   [&](const DcpItem& a, const DcpItem& b) { return range(a) < range(b); });
  items.erase(std::unique(items.begin(), items.end(),
                          [&](const DcpItem& a, const DcpItem& b) { return range(a) == range(b); }),
              items.end());
}

}  // namespace dsckpt
