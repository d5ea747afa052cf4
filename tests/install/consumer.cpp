// Opens the file named on the command line with the installed library, and prints its size.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "io/input_file.h"

int main(int argc, char** argv) {
  try {
    const dsckpt::InputFile file(argc > 1 ? argv[1] : "");
    std::printf("%ju\n", static_cast<uintmax_t>(file.size()));
  } catch (const dsckpt::Error& error) {
    std::printf("%s: %s\n", dsckpt::to_string(error.kind()), error.what());
    return 3;
  }
}
