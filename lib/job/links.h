// Links in an input that lead out of it: a checkpoint from elsewhere could have any file of this
// machine copied into an output, which is given away.
#pragma once

#include <filesystem>
#include <span>

namespace dsckpt {

// Whether `file` is, or lies behind, a link to what is in none of `folders`. What cannot be
// followed leads nowhere.
bool leads_out(const std::filesystem::path& file, std::span<const std::filesystem::path> folders);

}  // namespace dsckpt
