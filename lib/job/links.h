// Links in an input that lead out of it. A checkpoint from elsewhere could have any file of this
// machine copied into an output, which is then given away.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace dsckpt {

// True if `path` is `folder` or below it, by their names.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// True if `file` is, or lies behind, a link to a place in none of `folders`. A link that cannot be
// followed leads nowhere.
bool leads_out(const std::filesystem::path& file, std::span<const std::filesystem::path> folders);

// The note on a file that is not copied for that.
std::string left_out_link(const std::string& name);

}  // namespace dsckpt
