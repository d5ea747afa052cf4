#include "checkpoint/dcp_folder.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/text.h"
#include "dsckpt/error.h"
#include "format/dcp_metadata.h"
#include "io/content_name.h"
#include "io/input_file.h"

namespace dsckpt {
namespace fs = std::filesystem;
namespace {

bool has_metadata(const fs::path& folder) {
  const fs::path path = folder / kDcpMetadataName;
  try {
    if (!is_stored(path)) return false;
    constexpr std::byte kProto{0x80};  // protocol 2 and above begin with it
    const InputFile file(path);
    return file.size() > 0 && file.read(0, 1).front() == kProto;
  } catch (const Error&) {
    return false;
  }
}

// The number behind `front` in a folder's name; "" if it is none.
std::string number_behind(std::string_view front, const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(front)) return "";
  std::string number = name.substr(front.size());
  return is_digits(number) ? number : "";
}

// The models in folders of their own below `folder`, by their numbers.
std::vector<std::string> models_below(const fs::path& folder) {
  std::vector<std::string> numbers;
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    const std::string number = number_behind(kAccelerateModel, it->path());
    if (!number.empty() && has_metadata(it->path())) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

DcpFolder of_model(const fs::path& folder, const std::string& number) {
  DcpFolder found{folder, {folder / (std::string(kAccelerateModel) + number) / kDcpMetadataName}};
  const fs::path optimizer = folder / (std::string(kAccelerateOptimizer) + number);
  if (has_metadata(optimizer)) found.metadata.push_back(optimizer / kDcpMetadataName);
  return found;
}

}  // namespace

DcpFolder dcp_folder(const fs::path& folder) {
  if (has_metadata(folder)) {
    const fs::path named = folder.has_filename() ? folder : folder.parent_path();
    for (const std::string_view front : {kAccelerateModel, kAccelerateOptimizer}) {
      const std::string number = number_behind(front, named);
      const fs::path above = named.has_parent_path() ? named.parent_path() : fs::path(".");
      if (number.empty() || !has_metadata(above / (std::string(kAccelerateModel) + number)))
        continue;
      return of_model(above, number);
    }
    return {folder, {folder / kDcpMetadataName}};
  }
  const std::vector<std::string> models = models_below(folder);
  if (models.empty()) return {folder};
  if (models.size() == 1) return of_model(folder, models.front());
  throw InconsistentError({.file = folder.string()}, "holds " + counted(models.size(), "model"))
      .with_hint("give the folder of one: " +
                 (folder / (std::string(kAccelerateModel) + models.front())).string());
}

bool is_dcp_folder(const fs::path& folder) {
  return has_metadata(folder) || !models_below(folder).empty();
}

std::vector<fs::path> dcp_data_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  fs::directory_iterator it(folder, failed);
  for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
    if (content_path(it->path()).native().ends_with(kDcpDataSuffix)) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_dcp_name(std::string_view file_name) {
  return file_name == kDcpMetadataName || file_name.ends_with(kDcpDataSuffix);
}

}  // namespace dsckpt
