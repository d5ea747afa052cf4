// Prints a line for each tensor of a checkpoint: its name and its shape. Reads metadata only.
#include <dsckpt/checkpoint.h>
#include <dsckpt/error.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    const dsckpt::Source source = dsckpt::Source::open(argc > 1 ? argv[1] : "");
    for (const dsckpt::SourceTensor& tensor : source.tensors()) {
      std::printf("%s %s\n", tensor.name.c_str(), dsckpt::to_text(tensor.shape).c_str());
    }
  } catch (const dsckpt::Error& error) {
    std::printf("%s\n", dsckpt::to_string(error.kind()));
    return 3;
  }
}
