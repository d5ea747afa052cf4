// repack_safetensors IN.safetensors FOLDER NAME
//
// Reads a safetensors file and lays out its tensors and metadata again as FOLDER/NAME. The names
// are in falling order, so that the layout must sort.
#include <cstdio>
#include <utility>
#include <vector>

#include "format/safetensors.h"
#include "support/plan_runner.h"

int main(int argc, char** argv) {
  using namespace dsckpt;
  if (argc != 4) {
    std::fputs("usage: repack_safetensors IN.safetensors FOLDER NAME\n", stderr);
    return 2;
  }
  InputFiles files;
  const SafetensorsFile file = SafetensorsFile::open(files, files.add(argv[1]));
  std::vector<NamedSource> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.insert(tensors.begin(), {entry.name, file.tensor(entry)});
  }
  PlanBuilder plan;
  lay_out_safetensors(plan, argv[3], std::move(tensors), file.metadata());
  test::run_plan_to(plan.finish(), files, argv[2]);
  return 0;
}
