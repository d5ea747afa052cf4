// A main for a fuzz target without a fuzzer. It gives the target every file in the named files and
// folders, whole, and cut off at some places. The target fails by crashing.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kCuts = 16;

void feed(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> read((std::istreambuf_iterator<char>(stream)), {});
  for (size_t cut = 0; cut <= kCuts; ++cut) {
    // A copy of the exact size, so that a sanitizer sees a read past its end.
    const std::vector<uint8_t> bytes(
        read.begin(), read.begin() + static_cast<std::ptrdiff_t>(read.size() * cut / kCuts));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::filesystem::is_regular_file(argv[i])) paths.emplace_back(argv[i]);
      if (!std::filesystem::is_directory(argv[i])) continue;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
        if (entry.is_regular_file()) paths.push_back(entry.path());
      }
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      std::printf("%s\n", path.c_str());
      std::fflush(stdout);
      feed(path);
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("%zu files\n", paths.size());
  return paths.empty() ? 1 : 0;
}
