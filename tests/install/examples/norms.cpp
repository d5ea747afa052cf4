// Prints the norm of each tensor of a checkpoint. Tensors that lie in one shard are not copied.
#include <ATen/ops/norm.h>
#include <dsckpt/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  const auto reader = dsckpt::TensorReader::open(argc > 1 ? argv[1] : "");
  for (const std::string& name : reader.names()) {
    const at::Tensor tensor = reader.tensor(name).to(at::kDouble);
    std::printf("%s %.6g\n", name.c_str(), at::norm(tensor).item<double>());
  }
}
