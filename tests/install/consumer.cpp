// Opens the checkpoint named on the command line with the installed library, and prints a line for
// each tensor: its name and its shape.
#include <cstdio>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "io/input_file.h"

int main(int argc, char** argv) {
  try {
    dsckpt::InputFiles inputs;
    const auto checkpoint = dsckpt::Checkpoint::open(inputs, argc > 1 ? argv[1] : "");
    for (const auto& param : checkpoint.params()) {
      std::printf("%s [", param.name.c_str());
      const char* separator = "";
      for (const auto size : param.weight.shape()) {
        std::printf("%s%lld", separator, static_cast<long long>(size));
        separator = ", ";
      }
      std::printf("]\n");
    }
  } catch (const dsckpt::Error& error) {
    std::printf("%s\n", dsckpt::to_string(error.kind()));
    return 3;
  }
}
