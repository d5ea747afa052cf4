// copy_torch_archive IN FOLDER NAME [ITEMS]
//
// Writes FOLDER/NAME with TorchArchiveWriter::import() of the root of IN. A test compares what
// torch loads from both. With ITEMS the root, a dict, is made anew, and its keys and values are
// imported one by one.
#include <cstdio>
#include <exception>

#include "format/torch_archive.h"
#include "support/plan_runner.h"

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fputs("usage: copy_torch_archive IN FOLDER NAME [ITEMS]\n", stderr);
    return 2;
  }
  try {
    dsckpt::InputFiles files;
    const auto archive = dsckpt::TorchArchive::open(files, files.add(argv[1]));
    dsckpt::TorchArchiveWriter writer;
    dsckpt::pickle::Document& document = writer.document();
    if (argc == 4) {
      document.set_root(writer.import(archive, archive.root()));
    } else {
      const dsckpt::pickle::Value root = document.dict();
      for (const auto& [key, value] : archive.root().as_dict().items) {
        const auto copied = writer.import(archive, key);
        document.set_item(root, copied, writer.import(archive, value));
      }
      document.set_root(root);
    }
    dsckpt::PlanBuilder plan;
    std::move(writer).lay_out(plan, argv[3]);
    dsckpt::test::run_plan_to(plan.finish(), files, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
